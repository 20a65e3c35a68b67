#!/usr/bin/env python3
"""bench collectives: all_gather, reduce_scatter, all_reduce between processes; ours, gloo, memcpy.

    ./simplescale bench collectives [--ranks 2 4] [--sizes BYTES...] [--rounds 3] [--pin]
                                    [--realtime] [--build FOLDER] [--peers FOLDER]

Prints a table and one JSON line per row. All processes run on this host.

us       time of the slowest rank in microseconds: the median over the repetitions, then the best of
         the rounds. In each round ours runs first, then gloo_bench.py.
GB/s     bus bandwidth, as gloo_bench.py defines it.
copy us  time in which two processes memcpy as many bytes as the ranks must read in all: n * size
         bytes for n ranks, twice that for all_reduce.
x gloo   gloo's time divided by ours, which is the ratio of the bandwidths.
x copy   the copy's time divided by ours; 1.0 means as fast as a plain copy.

--pin binds each process to one core. --realtime runs every program under `chrt -f 10`, for machines
on which other programs run at the same time.
"""

import argparse, json, os, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {' '.join(command)}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def keep_best(best, who, rows):
    for row in rows:
        key = (who, row["operation"], row["ranks"], row["bytes"])
        if key not in best or row["us"] < best[key]["us"]:
            best[key] = row


def main():
    a = argparse.ArgumentParser(prog="./simplescale bench collectives",
                                description=__doc__.splitlines()[0])
    a.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    a.add_argument("--peers", default=os.path.join(ROOT, "tests", "bench", "peers"))
    a.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    a.add_argument("--sizes", type=int, nargs="+", default=[1 << 16, 1 << 20, 1 << 24, 1 << 26])
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--pin", action="store_true")
    a.add_argument("--realtime", action="store_true")
    a.add_argument("--python", default=os.path.join(ROOT, ".deps", "python", "bin", "python"))
    c = a.parse_args()
    prefix = ["chrt", "-f", "10"] if c.realtime else []
    pin = ["--pin"] if c.pin else []
    sizes = ["--sizes", *map(str, c.sizes)]
    gloo = os.path.join(c.peers, "gloo_bench.py")
    has_gloo = os.path.exists(gloo)
    if not has_gloo:
        print(f"{gloo} does not exist: gloo is not measured; see --peers", file=sys.stderr)
    best = {}
    for ranks in c.ranks:
        for _ in range(c.rounds):
            ours = [*prefix, os.path.join(c.build, "bin", "collective_bench"), str(ranks), *pin, *sizes]
            keep_best(best, "ours", run(ours))
            if has_gloo:
                command = [*prefix, c.python, "-m", "torch.distributed.run", "--standalone",
                           f"--nproc-per-node={ranks}", gloo, *pin, *sizes]
                keep_best(best, "gloo", run(command, {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}))

    print(f"{'operation':<15}{'ranks':>6}{'KiB':>8}{'us':>10}{'GB/s':>8}{'gloo us':>10}{'copy us':>10}{'x gloo':>8}{'x copy':>8}")
    for operation in ("all_reduce", "all_gather", "reduce_scatter"):
        for ranks in c.ranks:
            for size in c.sizes:
                ours = best["ours", operation, ranks, size]
                copy = best["ours", "copy_for_all_" + ("reduce" if operation == "all_reduce" else "gather"), ranks, size]
                theirs = best.get(("gloo", operation, ranks, size), {"us": float("nan")})
                row = dict(operation=operation, ranks=ranks, bytes=size, us=ours["us"], bus_gb_s=ours["bus_gb_s"],
                           gloo_us=theirs["us"], copy_us=copy["us"], times_gloo=round(theirs["us"] / ours["us"], 2),
                           times_copy=round(copy["us"] / ours["us"], 2))
                print(f"{operation:<15}{ranks:>6}{size >> 10:>8}{row['us']:>10.1f}{row['bus_gb_s']:>8.2f}{row['gloo_us']:>10.1f}"
                      f"{row['copy_us']:>10.1f}{row['times_gloo']:>8.1f}{row['times_copy']:>8.2f}")
                print(json.dumps(row), file=sys.stderr if sys.stdout.isatty() else sys.stdout)


if __name__ == "__main__":
    main()
