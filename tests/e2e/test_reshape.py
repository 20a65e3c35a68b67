"""Groups of another size: nodes that are left after a loss train in groups of which all can be part, with the same bits, and the
old groups come back with the lost node. RESHAPE-1."""

import subprocess
import unittest

from common import PROGRAM, EndlessRun, kill, last_step, leader, lines, status


class Reshape(EndlessRun):
    def begin(self, nodes, group_nodes, *more):
        self.keys = [f"--cluster.nodes={nodes}", "--cluster.trainers_per_node=1", f"--parallel.group_nodes={group_nodes}",
                     "--parallel.strategy=hybrid_shard", "--train.global_batch_size=12", "--train.schedule=constant",
                     "--train.warmup_steps=0", "--supervision.max_restarts=100", "--cluster.threads_per_trainer=1", *more]
        self.train_endlessly(*self.keys)

    def shape(self):
        """(groups, shards) of the layout that trains now."""
        document = status(self.run_folder)
        if not document or document["state"] != "training":
            return None
        ranks = [(n["group"], t["shard"]) for n in document["nodes"] if n["group"] is not None for t in n["trainers"]]
        return (len({g for g, _ in ranks}), len({s for _, s in ranks})) if ranks else None

    def trains_as(self, groups, shards):
        self.wait_for(lambda: self.shape() == (groups, shards), f"{groups} groups of {shards} shards")
        at = last_step(self.run_folder)
        self.wait_for(lambda: last_step(self.run_folder) >= at + 3, "further steps")

    def changed(self, words):
        return [e for e in self.events("layout_changed") if words in e["reason"]]

    def gap(self, event):
        """Seconds without a committed step around an event."""
        times = [m["time"] for m in lines(self.run_folder / "metrics.jsonl")]
        return min(t for t in times if t > event["time"]) - max(t for t in times if t <= event["time"])

    def kill_node(self, name):
        """All processes of a node."""
        node = next(n for n in status(self.run_folder)["nodes"] if n["name"] == name)
        kill(node["pid"], *[t["pid"] for t in node["trainers"]])

    def check(self):
        """The bits are those of as many steps on one node."""
        self.assertIn("each sample exactly once", self.verify(self.run_folder))
        self.assertFalse(self.events("mismatch", "bad_copy", "undone"))
        steps = last_step(self.run_folder)
        same = self.train("reference", *self.keys, *self.layout(1, 1), f"--train.max_steps={steps}")
        self.assertEqual(self.digest(self.run_folder), self.digest(same))

    def test_two_groups_of_two_nodes_that_lose_one_train_as_three(self):
        self.begin(4, 2)
        self.console("drain n3")
        self.trains_as(3, 1)
        change, = self.changed("3 groups of 1 node instead of 2 of 2")
        self.assertEqual(status(self.run_folder)["shape"], "3 groups of 1 node (configured: 2 of 2)")
        self.assertIn("\n3 groups of 1 node (configured: 2 of 2)\n", self.command("status", self.run_folder))
        print(f"2 x 2 to 3 x 1: {self.gap(change):.3f} s without a committed step")
        # A trainer dies in the new shape, then the supervisor; the shape stays.
        kill(next(t["pid"] for n in status(self.run_folder)["nodes"] for t in n["trainers"] if t["name"] == "n1.0"))
        self.wait_for(lambda: self.events("recovered"), "the recovery")
        kill(leader(self.run_folder)[1])
        self.wait_for(lambda: self.events("took_over"), "another supervisor")
        self.trains_as(3, 1)
        self.console("undrain n3")
        self.trains_as(2, 2)
        self.assertTrue(self.changed("2 groups of 2 nodes instead of 3 of 1"))
        self.assertIsNone(status(self.run_folder)["shape"])
        # A node dies with its memory; it is back at once, or a little later.
        self.kill_node("n2")
        self.wait_for(lambda: self.events("node_lost"), "the loss of a node")
        self.trains_as(2, 2)
        self.stop()
        self.check()

    def needed_gib(self, shards):
        """Memory that a trainer of a group of so many trainers needs."""
        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            code = subprocess.run([PROGRAM, "config", "validate", self.config, "--cluster.trainers_per_node=1", "--train.global_batch_size=12", "--train.max_steps=5",
                                   f"--cluster.nodes={shards}", f"--parallel.group_nodes={shards}", "--parallel.strategy=hybrid_shard",
                                   f"--cluster.memory_per_trainer_gib={middle}"], capture_output=True).returncode
            low, high = (middle, high) if code else (low, middle)
        return high

    def test_one_group_of_four_nodes_goes_on_with_three(self):
        memory = (self.needed_gib(2) + self.needed_gib(3)) / 2
        self.begin(4, 4, f"--cluster.memory_per_trainer_gib={memory}", "--checkpoint.peer_every_steps=2")
        self.console("drain n1")
        self.trains_as(1, 3)
        change, = self.changed("1 group of 3 nodes instead of 1 of 4")
        print(f"1 x 4 to 1 x 3: {self.gap(change):.3f} s without a committed step")
        self.console("save")
        self.wait_for(lambda: self.events("checkpoint_saved"), "a checkpoint of three shards")
        self.console("undrain n1")
        self.trains_as(1, 4)
        self.stop()
        self.keys = [k for k in self.keys if "memory_per" not in k]
        self.check()

    def test_a_killed_node_is_not_waited_for(self):
        """With a model of experts, whose units differ in size."""
        self.begin(4, 4, "--model.experts=4", "--checkpoint.peer_every_steps=1", "--cluster.join_timeout_ms=3600000")
        self.wait_for(lambda: last_step(self.run_folder) >= 8, "copies on other nodes")
        self.kill_node(next(f"n{n}" for n in range(4) if f"n{n}" != leader(self.run_folder)[2]))
        self.wait_for(lambda: any("3 groups of 1 node instead of 1 of 4" in e["reason"] for e in self.events("joined")), "groups of another size")
        self.trains_as(1, 4)
        self.stop()
        self.check()

    def test_a_group_comes_back_whose_last_shard_is_all_padding(self):
        self.begin(3, 3, "--cluster.trainers_per_node=2")
        self.trains_as(1, 6)
        self.console("drain n2")
        self.trains_as(2, 2)
        self.console("undrain n2")
        self.trains_as(1, 6)
        self.stop()
        self.check()

    def test_groups_keep_their_size_if_told_to(self):
        self.begin(4, 2, "--cluster.prefer=group_nodes")
        self.console("drain n3")
        self.trains_as(1, 2)
        self.assertTrue(self.changed("1 group instead of 2"))
        self.console("set cluster.prefer rate", code=64)
        self.stop()
        self.check()

    def test_most_nodes_train_if_the_rate_is_preferred(self):
        self.begin(4, 2, "--cluster.prefer=rate", f"--cluster.memory_per_trainer_gib={(self.needed_gib(1) + self.needed_gib(2)) / 2}")
        self.console("drain n0")
        self.trains_as(1, 3)
        self.console("drain n1")
        self.trains_as(1, 2)
        self.console("undrain n0", "undrain n1")
        self.trains_as(2, 2)
        self.stop()
        self.keys = [k for k in self.keys if "memory_per" not in k]
        self.check()


if __name__ == "__main__":
    unittest.main()
