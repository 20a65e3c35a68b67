"""Shares by speed (BALANCE-1): leaves of a slow node go to other nodes, and the run ends with the same bits."""

import subprocess
import unittest

from common import PROGRAM, Case, events, kill, last_step, leftovers, lines, status

NODES = 8


class Balance(Case):
    def setUp(self):
        super().setUp()
        # 32 micro-batches of one sample: four for each trainer.
        self.steps = ["--train.micro_batch_size=1", "--train.global_batch_size=32", "--train.schedule=constant", "--train.warmup_steps=0",
                      "--train.max_steps=150"]

    def slow(self, run, node, ms, how_long=3600000):
        done = subprocess.run([PROGRAM, "console", run, "-c", f"inject slow_node {node} --value {ms} --ms {how_long}"], capture_output=True)
        return done.returncode == 0

    def shares(self, run):
        """Of each node that trains: its micro-batches of a step."""
        return {n["name"]: sum(t["micro_batches"] for t in n["trainers"]) for n in (status(run) or {"nodes": []})["nodes"] if n["group"]}

    def begin(self, *overrides):
        """A run in which a micro-batch takes about 20 ms, and 80 ms on n3."""
        run, process = self.start("run", *self.steps, *self.layout(NODES, 1), *overrides)
        self.addCleanup(lambda: kill(*leftovers(run)))
        self.wait_for(lambda: last_step(run) >= 1, "a step")
        for node in range(NODES):
            self.wait_for(lambda: self.slow(run, f"n{node}", 80 if node == 3 else 20), "a run that can be slowed down")
        return run, process

    def end(self, run, process):
        for node in range(NODES):
            self.slow(run, f"n{node}", 1, 1)
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), self.undisturbed(*self.steps))
        self.verify(run)
        process.stdout.close()

    def test_a_slow_node_gets_fewer_micro_batches_and_kills_change_nothing(self):
        run, process = self.begin("--cluster.balance=auto")
        shares, = self.wait_for(lambda: events(run, "shares"), "shares by speed")
        self.assertIn("n3 at 0.", shares["reason"])
        self.assertIn("n3.0", [e["subject"] for e in events(run, "straggler")])
        leaving, = events(run, "leaving")
        self.assertIn("n3 is slow: with other shares a step takes", leaving["reason"])
        uneven = self.wait_for(lambda: (now := self.shares(run)).get("n3", 9) < 4 and sum(now.values()) == 32 and now, "the shares in the status")
        self.assertEqual(max(uneven, key=lambda node: -uneven[node]), "n3")
        self.assertIn(f"shard 0, {uneven['n3']} micro-batches", self.command("status", run))
        # A trainer dies, then the supervisor: the shares stay.
        kill(next(t["pid"] for n in status(run)["nodes"] for t in n["trainers"] if t["name"] == "n1.0"))
        recovered = self.wait_for(lambda: events(run, "recovered"), "the recovery")
        self.assertEqual(len(recovered), 1)
        self.wait_for(lambda: self.shares(run) == uneven, "the same shares")
        kill(status(run)["supervisor"]["pid"])
        self.wait_for(lambda: events(run, "took_over"), "another supervisor")
        at = last_step(run)
        self.wait_for(lambda: last_step(run) > at + 1 and self.shares(run) == uneven, "steps with the same shares")
        self.end(run, process)
        trained = {}
        for line in lines(run / "ledger.jsonl"):
            if line["step"] == at:
                trained[line["trainer"].partition(".")[0]] = sum(count for _, count in line["samples"])
        self.assertEqual(trained, uneven)

    def test_even_shares_stay_even(self):
        run, process = self.begin()
        self.wait_for(lambda: events(run, "straggler"), "a straggler")
        at = last_step(run)
        self.wait_for(lambda: last_step(run) > at + 25, "another measure")
        self.assertEqual(set(self.shares(run).values()), {4})
        self.assertFalse(events(run, "shares", "leaving"))
        self.end(run, process)


if __name__ == "__main__":
    unittest.main()
