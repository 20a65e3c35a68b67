"""What a GPU does in the steps of a trace of kernels (metrics.trace_steps), as a table.

    python3 tests/gpu/kernel_trace.py RUN/traces/kernels-21-n0.0.json [ROWS]

For the six busiest streams: how long it works, and its gaps. For each kernel: launches, ms, share."""

import collections
import json
import sys

KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


def events(path):
    """(stream, begin, end, name) of everything that the GPU did, in the order of beginning; ms."""
    with open(path) as file:
        found = [(e["args"]["stream"], e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3, e["name"]) for e in json.load(file)["traceEvents"] if e.get("cat") in KINDS]
    return sorted(found, key=lambda event: event[1])


def covered(spans):
    """ms in which at least one of the spans, which are in the order of beginning, runs."""
    total = end = 0
    for begin, until in spans:
        total += max(0, until - max(begin, end))
        end = max(end, until)
    return total


def short(name):
    """A kernel's name without what all have: its arguments and namespaces."""
    name = name.replace("(anonymous namespace)::", "").replace("simplescale::", "").removeprefix("void ")
    return name.split("(")[0][:70]


def table(path, rows=40):
    """Lines that tell of the whole trace."""
    found = events(path)
    if not found:
        return [f"{path} has no kernel"]
    begin, end = found[0][1], max(e[2] for e in found)
    lines = [f"{end - begin:.1f} ms; the GPU works in {covered([e[1:3] for e in found]):.1f} of them"]
    streams = collections.defaultdict(list)
    for event in found:
        streams[event[0]].append(event)
    for stream, its in sorted(streams.items(), key=lambda item: -len(item[1]))[:6]:
        gaps = [(b[1] - a[2], a[3], b[3]) for a, b in zip(its, its[1:])]
        longest = max(gaps, default=(0, "", ""))
        lines.append(f"stream {stream}: {len(its)} launches, {covered([e[1:3] for e in its]):.1f} ms; longest gap {longest[0]:.2f} ms, "
                     f"after {short(longest[1])}, before {short(longest[2])}; gaps below 0.1 ms add up to {sum(g[0] for g in gaps if 0 < g[0] < 0.1):.1f} ms")
    names = collections.defaultdict(list)
    for stream, a, b, name in found:
        names[short(name), stream].append(b - a)
    for (name, stream), ms in sorted(names.items(), key=lambda item: -sum(item[1]))[:rows]:
        lines.append(f"{sum(ms):9.2f} ms {100 * sum(ms) / (end - begin):5.1f} % {len(ms):5} x {sum(ms) / len(ms):8.4f} ms  stream {stream}  {name}")
    return lines


if __name__ == "__main__":
    print("\n".join(table(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40)))
