"""Creates a run folder with the synthetic records of a large job, for the tests of the web page. `page_fixture.py FOLDER`
creates one to look at."""

import json
import math
import pathlib
import random
import sys
import time

WRONG = {17: ("lost", "its agent does not answer any more"), 402: ("drained", "disk: 11 MB/s, others 480"), 777: ("suspect", "its state of step 19000 was wrong")}


def scores(step):
    """Of two tasks after a step, as in metrics.jsonl."""
    return {"reading": {"questions": 400, "acc": round(.25 + step / 80000, 4), "acc_norm": round(.26 + step / 70000, 4)},
            "prose <b>": {"words": 9000, "word_perplexity": 900 - step / 30, "byte_perplexity": 4 - step / 20000}}


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
            val = {"val_loss": 1.95 + 8 * math.exp(-step / 900) + .6 * math.exp(-step / 9000), "tasks": scores(step)} if step % 1000 == 0 else {}
            loss = 1.9 + 8 * math.exp(-step / 900) + .6 * math.exp(-step / 9000) + dice.gauss(0, .02)
            metrics.write(json.dumps({"time": round(t, 3), "step": step, "iter": step, "loss": loss, "grad_norm": abs(dice.gauss(.6, .1)), "lr": 4e-4 * (1 - step / 40000),
                                      "step_ms": round(ms, 3), "tokens": step * 16777216, "tokens_per_second": round(16777216 / .88, 1), "mfu": .447,
                                      "remaining_s": round((40000 - step) * .88, 1), "generation": generation, **val}) + "\n")
    with open(folder / "health.jsonl", "w") as health:
        for minute in range(0, int(now - begin) // 60, 30):
            for n, node in enumerate(listed):
                health.write(json.dumps({"time": round(begin + minute * 60 + n * .05, 3), "node": node["name"], "cpu": round(dice.betavariate(8, 16), 3), "memory": round(.4 + minute / 3000, 3),
                                         "disk": .3, "received_mb_per_s": 80.0, "sent_mb_per_s": 81.0, "gpus": [{"utilization": .97, "temperature_c": dice.uniform(50, 75)}], "trainers": []}) + "\n")
    for step in (0, 5000, 10000, 15000, 20000):
        (folder / f"checkpoints/step-{step:08}").mkdir(parents=True)
        (folder / f"checkpoints/step-{step:08}/manifest.json").write_text("{}" * 4000)
    (folder / "config.toml").write_text('[run]\nname = "tinyllama-1024"\n\n[supervision]\nnotify = "https://hooks.example/SECRET"\n\n[data]\nsource = "<script>document.title = \'hacked\'</script>"\n')
    (folder / "control/manifest.json").write_text(json.dumps({"starts": [{"time": begin - 60, "program": {"version": "1.0.0"}}]}))
    (folder / "control/key").write_bytes(bytes(range(200, 232)))
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs/n200.3.log").write_text("2026-11-22T12:00:00.000 info n200.3 generation 6: group 49 of 255\n2026-11-22T12:00:01.000 warning n200.3 <img src=x onerror=alert(1)>\n"
                                            "2026-11-22T12:00:02.000 error n200.3 the key is " + bytes(range(200, 232)).hex() + "\n")
    (folder / "logs/supervisor-n0.log").write_text("2026-11-22T12:00:00.000 info supervisor of term 1\n")
    with open(folder / "events.jsonl", "w") as events:
        def event(time, generation, step, kind, subject="", reason="", incident=None, phase=None, ms=None, **more):
            events.write(json.dumps({"time": round(time, 3), "generation": generation, "step": step, "incident": incident, "phase": phase, "kind": kind,
                                     "subject": subject, "reason": reason, "ms": ms, **more}) + "\n")
        event(begin, 1, 0, "started")
        for step in range(0, steps + 1, 1000):
            event(begin + step * .9, 1, step, "validated", "", "validation loss", val_loss=1.95 + 8 * math.exp(-step / 900) + .6 * math.exp(-step / 9000), tasks=scores(step),
                  val_losses={"web": 2.5 + 8 * math.exp(-step / 900), "<i>code": 2 + 8 * math.exp(-step / 900), "masked": None},
                  val_loss_at={"512": 3.0}, val_loss_by_position={"0": 5.0, "1": 4.0, "1024": 2.5, "2": None, "512": 2.6})
        for i, (at, step, generation, phases) in enumerate(recovered, 1):
            who, ms = f"n{dice.randrange(nodes)}.{dice.randrange(trainers)}", sum(phases.values())
            event(at, generation, step, "trainer_lost", who, "killed by signal 9 (Killed)", i, "detect", 0)
            event(at, generation, step, "recovered", f"{who}: killed by signal 9 (Killed)",
                  f"{who}: killed by signal 9 (Killed); the same nodes; generation {generation} begins at step {step} from memory; lost 0 steps, {ms} ms", i, ms=ms, phases=phases,
                  **({"sentence": f"{who} was killed by signal 9. It was started again and no step was lost. Stopped for {ms / 1000:.1f} s."} if i % 2 else {}))
            event(at + 60, generation, step + 60, "checkpoint_saved", "", f"step {step + 60}")
        event(now - 1, generation, steps, "trainer_ended", "n200.3", "killed by signal 11 (Segmentation fault)", len(recovered) + 1, "detect", 0)
        event(now - .9, generation, steps, "fenced", "", f"generation {generation + 1}", len(recovered) + 1, "fence", 80)
    groups = {n["group"] for n in listed if n["group"]}
    (folder / "control/status.json").write_text(json.dumps({
        "run": "tinyllama-1024", "state": "recovering", "generation": generation, "step": steps, "max_steps": 40000, "loss": loss, "tasks": scores(steps), "tokens_per_second": 16777216 / .88,
        "incidents": len(recovered) + 1, "groups": len(groups), "shape": f"{len(groups)} groups of {group_nodes} nodes (configured: 255 of {group_nodes})", "paused": False, "stall": None,
        "plan": {"model": {"preset": "tinyllama-1.1b", "parameters": 1100048384, "dim": 2048, "layers": 22, "heads": 32, "vocab": 32000, "block_size": 2048}, "nodes": nodes - spares, "spares": spares, "trainers_per_node": trainers,
                 "groups": 255, "shards": group_nodes * trainers, "strategy": "hybrid_shard", "precision": "bf16", "global_batch_size": 8192, "tokens_per_step": 16777216},
        "supervisor": {"node": "n0", "pid": 4100}, "standby": {"node": "n1", "pid": 4101}, "nodes": listed}, indent=1))
    return folder


if __name__ == "__main__":
    large_run(sys.argv[1])
