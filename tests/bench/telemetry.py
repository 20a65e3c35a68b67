#!/usr/bin/env python3
"""bench telemetry: what telemetry, log scanning and the web page cost of a step.

    ./simplescale bench telemetry [--rounds 5] [--steps 100] [--preset micro]

Alternates two runs of 2 nodes x 2 trainers: one with telemetry, log scanning and HTTP, where a page
asks once a second and a Prometheus scrapes every 5 s, and one with all of these turned off.

The first table compares the step times. On a machine that is not quiet their ratio is noise. The
second table does not depend on other load: it has the CPU time, from /proc, of each agent's threads
"health" and "log scanner" and of the HTTP process in the runs with telemetry, as a share of the
trainers' CPU time. It does not separate what the supervisor does with the reports; only the ratio
of the step times includes that.

Prints one JSON line per run, then the tables.
"""

import json
import os
import socket
import statistics
import threading
import time
import urllib.request
from pathlib import Path

import harness
from faults import Run
from harness import Failed, median_ratio, table

OFF = dict(metrics__health_every_ms=0, metrics__http_port=0, supervision__log_max_mib=0)
WARM_UP = 20
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cpu_s(stat):
    """CPU seconds of a thread or process, given its stat file; 0 if it has ended."""
    try:
        words = Path(stat).read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS
    except OSError:
        return 0


def threads_s(pid, name):
    """CPU seconds of the process's threads with this name, from counters in nanoseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() == name:
                total += int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            pass
    return total


class Reader:
    """A thread that reads from the HTTP server as an open page and a Prometheus do."""

    def __init__(self, port, token):
        self.headers = {"Authorization": f"Bearer {token}"}
        self.base, self.stop, self.after, self.bytes = f"http://127.0.0.1:{port}", threading.Event(), {}, 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def get(self, path):
        with urllib.request.urlopen(urllib.request.Request(self.base + path, headers=self.headers), timeout=10) as answer:
            self.bytes += len(answer.read())
            return answer.headers

    def run(self):
        count = 0
        while not self.stop.wait(1):
            try:
                self.get("/status")
                for name in ("metrics", "events"):
                    self.after[name] = self.get(f"/{name}.jsonl?after={self.after.get(name, 0)}")["X-Next"]
                if count % 5 == 0:
                    self.get("/metrics")
                count += 1
            except OSError:
                pass

    def end(self):
        self.stop.set()
        self.thread.join()


def wait_for_steps(run, count):
    """Waits until `count` steps are committed. Polls seldom, because reading costs CPU time."""
    while len(run.metrics()) < count:
        if run.process.poll() is not None:
            raise Failed(f"{run.folder}: `train` ended with exit code {run.process.returncode}")
        time.sleep(0.5)


def go(flags, data, on):
    """Measures one run, with everything on or off."""
    port = free_port()
    settings = dict(metrics__http_port=port, metrics__health_every_ms=1000) if on else OFF
    run = Run(flags, data, "telemetry-" + ("on" if on else "off"), train__max_steps=1000000, **settings)
    run.settle()
    reader = Reader(port, json.loads((Path(run.folder) / "control/http.json").read_text())["token"]) if on else None
    begin = len(run.metrics()) + WARM_UP
    wait_for_steps(run, begin)
    page = run.status()
    agents = [n["pid"] for n in page["nodes"]]
    trainers = [t["pid"] for n in page["nodes"] for t in n["trainers"]]
    http = next((p.name for p in Path("/proc").glob("[0-9]*") if on and command_of(p).split("\0")[1:3] == ["http", f"--run={run.folder}"]), None)

    def used():
        return {"health": sum(threads_s(p, "health") for p in agents), "log scanner": sum(threads_s(p, "log scanner") for p in agents),
                "HTTP": cpu_s(f"/proc/{http}/stat") if http else 0, "trainers": sum(cpu_s(f"/proc/{p}/stat") for p in trainers),
                "supervisor": cpu_s(f"/proc/{page['supervisor']['pid']}/stat")}

    first = used()
    wait_for_steps(run, begin + flags.steps)
    last, metrics = used(), run.metrics()[begin : begin + flags.steps]
    if reader:
        reader.end()
    run.stop()
    took = metrics[-1]["time"] - metrics[0]["time"]
    return dict(on=on, step_ms=round(1e3 * took / (len(metrics) - 1), 3), cpu_s={k: round(last[k] - first[k], 4) for k in last})


def command_of(process):
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def main():
    a = harness.parser("telemetry", __doc__)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--steps", type=int, default=100)
    a.add_argument("--preset", choices=list(harness.PRESETS), default="micro")
    flags = a.parse_args()
    flags.work = flags.work.absolute()
    data = harness.write_tokens(flags, flags.preset)
    results = {True: [], False: []}
    for number in range(flags.rounds):
        for on in (True, False) if number % 2 == 0 else (False, True):
            results[on].append(go(flags, data, on))
            print(json.dumps(results[on][-1]), flush=True)
    ms = {on: [r["step_ms"] for r in results[on]] for on in results}
    print("\n" + table([f"{flags.preset} 2x2, {flags.rounds} rounds of {flags.steps} steps", "on", "off", "on / off"],
                       [["step ms, median", *(f"{statistics.median(ms[on]):.2f}" for on in (True, False)), f"{median_ratio(ms[True], ms[False]):.4f}"],
                        ["step ms, least", *(f"{min(ms[on]):.2f}" for on in (True, False)), f"{min(ms[True]) / min(ms[False]):.4f}"]]))
    total = {k: sum(r["cpu_s"][k] for r in results[True]) for k in results[True][0]["cpu_s"]}
    own = sum(total[k] for k in ("health", "log scanner", "HTTP"))
    rows = [[k, f"{total[k]:.3f}", f"{total[k] / total['trainers']:.3%}"] for k in total]
    print("\n" + table(["CPU time, runs with telemetry", "s", "share of the trainers'"], [*rows, ["health, log scanner and HTTP", f"{own:.3f}", f"{own / total['trainers']:.3%}"]]))


if __name__ == "__main__":
    harness.run_main(main)
