#!/usr/bin/env python3
"""bench attack: training between two hosts while a third host attacks all their ports.

    sudo ./simplescale bench attack [--rounds 5] [--seconds 10] [--rate 2000] [--preset micro] [--spare-core]

The hosts are network namespaces with one trainer each. In each round the run trains alone, then
attacked: tests/e2e/rogue.py keeps 300 half-open connections to each port, and makes --rate further
ones a second (0: as many as it can) that send noise, UCX's wire format, HTTP or a wrong handshake.

The ratio of the steps a second contains what the attacker takes from the same cores; with
--spare-core it does not, since the threads that compute have the first core alone, in both phases,
as on a host with a core to spare. The CPU time of the run's processes never contains the attacker: how much more of it a step takes, divided by the connections, is
what each one costs the run.

Prints one JSON line per round, then the table. Needs root, `ip` and `nft`.
"""

import atexit
import json
import os
import statistics
import subprocess
import sys
import time

import harness
from faults import Run
from harness import Failed, table
from telemetry import cpu_s

E2E = harness.ROOT / "tests/e2e"
sys.path.insert(0, str(E2E))
from namespaces import WHY_NOT, Network  # of the tests, not the benchmark of this name

HALF_OPEN = 300        # connections to each port that stay open, again every RENEW_S
RENEW_S = 2.5          # a process ends a connection without a proof after 5 s
PORTS = 2 * 3 * 2 + 2  # of agents, trainers and warm trainers two each, of supervisor and standby one


def limited_network(name, hosts, rate):
    """As many namespaces, which send and receive at most `rate`, as tc names it, until this process ends."""
    if WHY_NOT:
        sys.exit(f"{name}: {WHY_NOT}")
    network = Network(hosts)
    atexit.register(network.close)
    network.limit(rate)
    return network


class HostsRun(Run):
    """One agent in each of the first namespaces, as srun would start it; variables: of their environment."""

    def __init__(self, flags, data, network, hosts=2, variables={}, **settings):
        self.network, self.hosts, self.variables = network, hosts, variables
        super().__init__(flags, data, "hosts", **{"cluster__trainers_per_node": 1, **settings})

    def launch(self, command, **outputs):
        slurm = {"SLURM_NTASKS": str(self.hosts), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
        self.tasks = [subprocess.Popen(["ip", "netns", "exec", self.network.spaces[i], *command], **outputs,
                                       env={**os.environ, **self.variables, **slurm, "SLURM_PROCID": str(i)}) for i in range(self.hosts)]
        return self.tasks[0]

    def stop(self):
        for task in self.tasks:
            self.process = task
            super().stop()

    def timed(self, steps):
        """Seconds of a step, and MB that a host sends in it, over so many steps. Ends the run."""
        self.settle()
        first, before = self.metrics()[-1], self.network.sent()
        last = self.wait(lambda: (m := self.metrics()[-1])["step"] >= first["step"] + steps and m, "more steps")
        after = self.network.sent()
        self.stop()
        made = last["step"] - first["step"]
        return {"step_s": (last["time"] - first["time"]) / made,
                "host_mb": statistics.mean(b - a for a, b in zip(before, after)) / made / 1e6}

    def cpu_s(self):
        return sum(cpu_s(f"/proc/{pid}/stat") for i in range(self.hosts) for pid in self.network.processes(i))


class Rogue:
    """A process of the attacking host. A wave is `calls` connections to each port, and half-open ones that stay until the next."""

    def __init__(self, network, ports, calls, half_open):
        self.process = subprocess.Popen(["ip", "netns", "exec", network.spaces[2], sys.executable, E2E / "rogue.py", str(calls),
                                         str(half_open), *ports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wave(self):
        """Returns how many connections were made."""
        print(file=self.process.stdin, flush=True)
        return sum(map(int, self.process.stdout.readline().split()))

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def spare_core(network):
    """Gives the threads that compute the first core. All other threads of the run, and this process with the attacker that it starts, get the rest."""
    first, *rest = sorted(os.sched_getaffinity(0))
    for pid in [pid for node in range(2) for pid in network.processes(node)]:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as name:
                computes = name.read().startswith("compute")
            os.sched_setaffinity(int(thread), [first] if computes else rest)
    os.sched_setaffinity(0, rest)


def attack(network, ports, flags):
    """Attacks for --seconds. Returns how many connections were made, and the attacker's CPU seconds."""
    holder, caller = Rogue(network, ports, 0, HALF_OPEN), Rogue(network, ports, 5, 0)
    begin, renewed, made, called = time.monotonic(), float("-inf"), 0, 0
    while (now := time.monotonic()) < begin + flags.seconds:
        if now > renewed + RENEW_S:
            renewed = now
            made += holder.wave()
        called += caller.wave()
        if flags.rate:
            time.sleep(max(0, begin + called / flags.rate - time.monotonic()))
    used = sum(cpu_s(f"/proc/{rogue.process.pid}/stat") for rogue in (holder, caller))
    holder.end()
    caller.end()
    return made + called, used


def phase(run, work):
    """Steps, steps a second, and CPU ms of the run's processes for each step, while work() runs. And what it returns."""
    begin, used, first = time.time(), run.cpu_s(), len(run.metrics())
    result = work()
    took, used, steps = time.time() - begin, run.cpu_s() - used, len(run.metrics()) - first
    if not steps:
        raise Failed("no step was committed; pass a longer --seconds")
    return steps, steps / took, 1e3 * used / steps, result


def main():
    parser = harness.parser("attack", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="of each phase")
    parser.add_argument("--rate", type=int, default=2000, help="connections a second, beside the half-open ones; 0: no limit")
    parser.add_argument("--preset", default="micro")
    parser.add_argument("--spare-core", action="store_true", help="the threads that compute share no core with the attacker")
    flags = parser.parse_args()
    if flags.spare_core and len(os.sched_getaffinity(0)) < 2:
        sys.exit("attack: --spare-core needs two cores")
    if WHY_NOT:
        sys.exit(f"attack: {WHY_NOT}")
    network = Network(3)
    atexit.register(network.close)
    run = HostsRun(flags, harness.write_tokens(flags, flags.preset), network)
    run.settle()
    run.wait(lambda: len(network.ports(range(2))) == PORTS, "all processes to listen")
    ports = network.ports(range(2))
    if flags.spare_core:
        spare_core(network)
    rows = []
    for number in range(flags.rounds):
        _, alone, alone_cpu, _ = phase(run, lambda: time.sleep(flags.seconds))
        steps, attacked, cpu, (made, used) = phase(run, lambda: attack(network, ports, flags))
        run.steps_after(time.time())
        rows.append(dict(round=number, alone_steps_per_s=alone, attacked_steps_per_s=attacked, ratio=attacked / alone,
                         alone_cpu_ms=alone_cpu, attacked_cpu_ms=cpu, connections_per_s=made / flags.seconds,
                         us_per_connection=1e3 * steps * (cpu - alone_cpu) / made,
                         attacker_cores=used / flags.seconds, load=os.getloadavg()[0]))
        print(json.dumps({name: round(value, 3) for name, value in rows[-1].items()}), flush=True)
    lost = [e for e in run.events() if e["kind"] in ("node_lost", "trainer_lost", "resigned")]
    run.stop()
    if lost:
        raise Failed(f"the attack has ended processes of the run: {lost}")

    def median(name, digits):
        return f"{statistics.median(row[name] for row in rows):.{digits}f}"
    print("\n" + table(["", "alone", "attacked"], [
        ["steps a second", median("alone_steps_per_s", 2), median("attacked_steps_per_s", 2)],
        ["CPU time of the run for each step, ms", median("alone_cpu_ms", 0), median("attacked_cpu_ms", 0)]]))
    print(f"\nratio of the steps: {median('ratio', 2)}; connections a second: {median('connections_per_s', 0)}, each of which "
          f"costs the run {median('us_per_connection', 0)} us of CPU time; cores that the attacker used: "
          f"{median('attacker_cores', 2)} of {os.cpu_count()}")


if __name__ == "__main__":
    harness.run_main(main)
