#!/usr/bin/env python3
"""bench collectives: all_gather, reduce_scatter, all_reduce between processes; ours, gloo, memcpy.

Collectives between processes of this host: ours, gloo's, and a plain two-process copy of the same bytes.

    tests/bench/collectives.py [--build build] [--peers FOLDER] [--ranks 2 4] [--rounds 3] [--pin] [--realtime]

Prints a table and one JSON line per row. us is the median over repetitions of the slowest rank, the best of the rounds,
ours and gloo's taking turns; bus bandwidth is as gloo_bench.py defines it. `copy` is the time in which two processes
memcpy what the ranks must read in all (n * size bytes; for all_reduce twice that). `x gloo` compares bandwidths, `x copy`
is copy's time over ours: 1.0 means as fast as moving the bytes. --realtime runs all of it under chrt, for machines that
others use meanwhile.
"""

import argparse, json, os, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def keep_best(best, who, rows):
    for row in rows:
        key = (who, row["operation"], row["ranks"], row["bytes"])
        if key not in best or row["us"] < best[key]["us"]:
            best[key] = row


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
        print(f"no {gloo}: ours and the copy only", file=sys.stderr)
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
