"""Creates a run folder with the synthetic records of a large job, for the tests of the web page. `page_fixture.py FOLDER`
creates one to look at."""

import json
import math
import pathlib
import random
import sys
import time

WRONG = {17: ("lost", "its agent does not answer any more"), 402: ("drained", "disk: 11 MB/s, others 480"), 777: ("suspect", "its state of step 19000 was wrong")}


def large_run(folder, nodes=1024, trainers=8, group_nodes=4, spares=4, steps=20000):
    """Groups of group_nodes nodes. The last `spares` nodes are spares, the nodes in WRONG do not train, node 100 is slow, and one
    trainer of node 200 is being restarted."""
    folder, dice = pathlib.Path(folder), random.Random(7)
    (folder / "control").mkdir(parents=True, exist_ok=True)
    now, listed, place = time.time(), [], 0
    for n in range(nodes):
        state, reason = WRONG.get(n, ("spare" if n >= nodes - spares else "up", ""))
        group = f"g{place // group_nodes}" if state == "up" else None
        place += state == "up"
        slow = 1.37 if n == 100 else 1.0
        listed.append({
            "name": f"n{n}", "host": f"gpu-{n // 32:02}-{n % 32:02}", "state": state, "pid": 4000 + n, "group": group, "reason": reason, "peer_copies": [],
            "health": {"time": now, "node": f"n{n}", "cpu": round(dice.uniform(.2, .5), 3), "memory": round(dice.uniform(.4, .6), 3), "disk": 0.31,
                       "received_mb_per_s": 80.0, "sent_mb_per_s": 81.0, "gpus": [
                           {"name": "NVIDIA H100", "utilization": 0.97, "temperature_c": dice.uniform(50, 75), "power_w": 640, "memory_used": 0.8, "ecc_errors": 0}
                           for _ in range(trainers)]},
            "trainers": [{"name": f"n{n}.{t}", "pid": 100000 + n * 10 + t, "rank": place * trainers + t if group else None,
                          "shard": place % group_nodes * trainers + t if group else None, "group": group,
                          "state": ("down" if (n, t) == (200, 3) else "training") if group else ("down" if state == "lost" else "idle"),
                          "step": steps, "slowness": round(slow * dice.gauss(1, .03), 2) if group else None} for t in range(trainers)]})
    recovered, begin = [], now - steps * 0.9
    generation, t = 1, begin
    with open(folder / "metrics.jsonl", "w") as metrics:
        for step in range(1, steps + 1):
            ms = dice.gauss(880, 12)
            if step % 3500 == 0:
                generation += 1
                phases = {"detect": 0, "fence": 2, "decide": 31, "heal": dice.randint(200, 900), "resume": dice.randint(60, 3000)}
                ms += sum(phases.values())
                recovered.append((t, step, generation, phases))
            t += ms / 1e3
            loss = 1.9 + 8 * math.exp(-step / 900) + .6 * math.exp(-step / 9000) + dice.gauss(0, .02)
            metrics.write(json.dumps({"time": round(t, 3), "step": step, "iter": step, "loss": loss, "grad_norm": abs(dice.gauss(.6, .1)), "lr": 4e-4 * (1 - step / 40000),
                                      "step_ms": round(ms, 3), "tokens": step * 16777216, "tokens_per_second": round(16777216 / .88, 1), "mfu": .447,
                                      "remaining_s": round((40000 - step) * .88, 1), "generation": generation}) + "\n")
    with open(folder / "events.jsonl", "w") as events:
        def event(time, generation, step, kind, subject="", reason="", incident=None, phase=None, ms=None, **more):
            events.write(json.dumps({"time": round(time, 3), "generation": generation, "step": step, "incident": incident, "phase": phase, "kind": kind,
                                     "subject": subject, "reason": reason, "ms": ms, **more}) + "\n")
        event(begin, 1, 0, "started")
        for i, (at, step, generation, phases) in enumerate(recovered, 1):
            who, ms = f"n{dice.randrange(nodes)}.{dice.randrange(trainers)}", sum(phases.values())
            event(at, generation, step, "trainer_lost", who, "killed by signal 9 (Killed)", i, "detect", 0)
            event(at, generation, step, "recovered", f"{who}: killed by signal 9 (Killed)",
                  f"{who}: killed by signal 9 (Killed); the same nodes; generation {generation} begins at step {step} from memory; lost 0 steps, {ms} ms", i, ms=ms, phases=phases)
            event(at + 60, generation, step + 60, "checkpoint_saved", "", f"step {step + 60}")
        event(now - 1, generation, steps, "trainer_ended", "n200.3", "killed by signal 11 (Segmentation fault)", len(recovered) + 1, "detect", 0)
        event(now - .9, generation, steps, "fenced", "", f"generation {generation + 1}", len(recovered) + 1, "fence", 80)
    groups = {n["group"] for n in listed if n["group"]}
    (folder / "control/status.json").write_text(json.dumps({
        "run": "tinyllama-1024", "state": "recovering", "generation": generation, "step": steps, "max_steps": 40000, "loss": loss, "tokens_per_second": 16777216 / .88,
        "incidents": len(recovered) + 1, "groups": len(groups), "paused": False, "supervisor": {"node": "n0", "pid": 4100}, "standby": {"node": "n1", "pid": 4101}, "nodes": listed}, indent=1))
    return folder


if __name__ == "__main__":
    large_run(sys.argv[1])
