#!/usr/bin/env python3
"""bench namespaces: what protection costs between two hosts: two network namespaces, joined by veth.

    sudo ./simplescale bench namespaces [--rounds 2] [--build FOLDER] [--peers FOLDER]

Prints ratios to the unprotected neighbours, and the figures behind them. In each round all systems
run one after the other; the best of the rounds counts.

all_reduce   of two ranks: encrypted, UCX on a trusted network, and gloo, which has no protection
messages     round trip and 64-byte rate: encrypted, and BASP, which has no protection

Needs root and `ip`.
"""

import argparse, json, os, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPACES = [f"ss{name}{os.getpid()}" for name in "ab"]
ADDRESSES = ["10.213.8.1", "10.213.8.2"]
SIZES = [64, 1 << 16, 1 << 20, 1 << 26]


def make_namespaces():
    """Two network namespaces, whose interfaces eth0 are the two ends of a cable."""
    for space in SPACES:
        subprocess.run(["ip", "netns", "add", space], check=True)
    subprocess.run(["ip", "-n", SPACES[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0",
                    "netns", SPACES[1]], check=True)
    for space, address in zip(SPACES, ADDRESSES):
        for what in (["addr", "add", address + "/24", "dev", "eth0"], ["link", "set", "eth0", "up"],
                     ["link", "set", "lo", "up"]):
            subprocess.run(["ip", "-n", space, *what], check=True)


def lines(process):
    out, err = process.communicate(timeout=900)
    if process.returncode != 0:
        sys.exit(f"exit code {process.returncode}: {process.args}\n{err[-2000:]}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def start(command, space=None, **environment):
    inside = ["ip", "netns", "exec", space] if space else []
    return subprocess.Popen([*inside, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **environment})


def ours(c, plane):
    command = [os.path.join(c.build, "bin/collective_bench"), "2", plane, "--namespaces", *SPACES, "--sizes", *map(str, SIZES)]
    return {row["bytes"]: row["us"] for row in lines(start(command)) if row["operation"] == "all_reduce"}


def gloo(c):
    command = [c.python, os.path.join(c.peers, "gloo_bench.py"), "--sizes", *map(str, SIZES)]
    ranks = [start(command, space, RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE="2", MASTER_ADDR=ADDRESSES[0], MASTER_PORT="29400",
                   GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1") for i, space in enumerate(SPACES)]
    rows = [lines(rank) for rank in ranks]
    return {row["bytes"]: row["us"] for row in rows[0] if row["operation"] == "all_reduce"}


def messages(c):
    command = [os.path.join(c.build, "bin/messaging_bench"), "--quick", "--json"]
    found = lines(start(command, SPACES[0], MESSAGING_BENCH_SERVER=f"{SPACES[1]} {ADDRESSES[1]}"))
    return {(row["placement"], row["system"]): row for row in found}


def main():
    a = argparse.ArgumentParser(prog="./simplescale bench namespaces", description=__doc__.splitlines()[0])
    a.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    a.add_argument("--peers", default=os.path.join(ROOT, "tests", "bench", "peers"))
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--python", default=os.path.join(ROOT, ".deps", "python", "bin", "python"))
    c = a.parse_args()
    if os.geteuid() != 0:
        sys.exit("namespaces: needs root, to make network namespaces")
    best, message_rounds = {}, []
    try:
        make_namespaces()
        for _ in range(c.rounds):
            for name, measure in (("encrypted", lambda: ours(c, "--stream")), ("ucx", lambda: ours(c, "--ucx")), ("gloo", lambda: gloo(c))):
                for size, us in measure().items():
                    best[name, size] = min(us, best.get((name, size), us))
            message_rounds.append(messages(c))
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)

    print(f"load average: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}", file=sys.stderr)
    print(f"{'all_reduce':>12} {'encrypted us':>13} {'ucx us':>10} {'gloo us':>10} {'/ ucx':>7} {'/ gloo':>7}")
    for size in SIZES:
        encrypted, ucx, other = (best[name, size] for name in ("encrypted", "ucx", "gloo"))
        print(f"{size:>12} {encrypted:>13.0f} {ucx:>10.0f} {other:>10.0f} {encrypted / ucx:>7.2f} {encrypted / other:>7.2f}")
        print(json.dumps(dict(bytes=size, encrypted_us=encrypted, ucx_us=ucx, gloo_us=other)))
    print(f"{'cores':>12} {'round trip us':>13} {'/ BASP':>8} {'64 B msg/s':>11} {'/ BASP':>8}")
    for placement in ("split", "same"):
        def of(system, key, better):
            return better(found[placement, system][key] for found in message_rounds)
        trip, rate = of("tcp", "rtt_p50_us", min), of("tcp", "small_per_s", max)
        basp_trip = min(of(s, "rtt_p50_us", min) for s in ("basp", "basp-best"))
        basp_rate = max(of(s, "small_per_s", max) for s in ("basp", "basp-best"))
        print(f"{placement:>12} {trip:>13.1f} {trip / basp_trip:>8.2f} {rate:>11.0f} {rate / basp_rate:>8.2f}")
        print(json.dumps(dict(placement=placement, round_trip_us=trip, basp_round_trip_us=basp_trip, small_per_s=rate,
                              basp_small_per_s=basp_rate)))


if __name__ == "__main__":
    main()
