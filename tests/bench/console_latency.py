#!/usr/bin/env python3
"""bench console_latency: how long the console waits for an answer while a run trains.

    ./simplescale bench console_latency [--commands 300] [--preset micro]

A run of 2 nodes x 2 trainers trains on all cores. One `console RUN` process stays open and reads
commands from its standard input at random moments; the time is from the line written to the answer
line read. Afterwards `console RUN -c status` is timed, with a process and a connection per command.
Prints one JSON line per row, then the table.
"""

import json
import random
import subprocess
import time

import harness
from faults import Run
from harness import Failed, table

COMMANDS = ("status", "tree", "set", "plan kill_trainer n0.0", "set supervision.max_restarts 100000")


def row(name, ms):
    ms = sorted(ms)
    line = dict(what=name, n=len(ms), p50_ms=round(ms[len(ms) // 2], 2), p99_ms=round(ms[min(len(ms) - 1, int(0.99 * len(ms)))], 2), max_ms=round(ms[-1], 2))
    print(json.dumps(line), flush=True)
    return line


def kept_open(flags, run, dice):
    console = subprocess.Popen([flags.build / "bin/simplescale", "console", run.folder, "--json"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, bufsize=1)
    times = {command: [] for command in COMMANDS}
    for i in range(flags.commands + 1):
        command = COMMANDS[i % len(COMMANDS)]
        time.sleep(dice.uniform(0, 0.1))
        begin = time.perf_counter()
        console.stdin.write(command + "\n")
        answer = console.stdout.readline()
        if i:  # the first command also connects
            times[command].append(1e3 * (time.perf_counter() - begin))
        if not json.loads(answer):
            raise Failed(f"console command '{command}': empty answer {answer!r}")
    console.stdin.close()
    console.wait(10)
    return times


def anew(flags, run, command):
    begin = time.perf_counter()
    harness.call([flags.build / "bin/simplescale", "console", run.folder, "-c", command, "--json"])
    return 1e3 * (time.perf_counter() - begin)


def main():
    a = harness.parser("console_latency", __doc__)
    a.add_argument("--commands", type=int, default=300)
    a.add_argument("--preset", choices=list(harness.PRESETS), default="micro")
    a.add_argument("--seed", type=int, default=1)
    flags = a.parse_args()
    run = Run(flags, harness.write_tokens(flags, flags.preset), "console")
    run.settle()
    times = kept_open(flags, run, random.Random(flags.seed))
    rows = [row(command, ms) for command, ms in times.items()]
    rows.append(row("all", [ms for each in times.values() for ms in each]))
    rows.append(row("one process per command (-c status)", [anew(flags, run, "status") for _ in range(max(20, flags.commands // 10))]))
    run.stop()
    print("\n" + table(["console, ms while training", "n", "p50", "p99", "max"], [[r["what"], r["n"], r["p50_ms"], r["p99_ms"], r["max_ms"]] for r in rows]))


if __name__ == "__main__":
    harness.run_main(main)
