"""A copy of a state that is damaged: the next one is used, always the same bits."""

import unittest

from common import Case, last_step, leftovers, lines


class Peers(Case):
    steps = 240
    common = ["--train.global_batch_size=8", "--parallel.strategy=hybrid_shard"]

    def flags(self, *layout):
        return [*self.common, f"--train.max_steps={self.steps}", *layout]

    def reference(self):
        return self.digest(self.train("reference", *self.flags("--cluster.nodes=1", "--cluster.trainers_per_node=1")))

    def events(self, run, kind):
        return [e for e in lines(run / "events.jsonl") if e["kind"] == kind]

    def finish(self, run, process, want):
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse(leftovers(run))

    def test_a_snapshot_that_changes_in_memory_is_found_and_the_replica_s_used(self):
        want = self.reference()
        run, process = self.start("run", *self.flags("--cluster.nodes=2", "--cluster.trainers_per_node=1", "--parallel.group_nodes=1"))
        self.wait_for(lambda: last_step(run) >= 20, "step 20")
        self.command("console", run, "-c", "inject corrupt_snapshot n1.0", "-c", "inject kill_trainer n1.0")
        self.finish(run, process, want)
        self.assertTrue([e for e in self.events(run, "bad_copy") if e["subject"] == "n1.0"], lines(run / "events.jsonl"))
        self.assertFalse(self.events(run, "steps_undone"), "the replica had it")

    def test_one_group_goes_back_a_step_when_a_bit_changes_in_memory(self):
        want = self.reference()
        run, process = self.start("run", *self.flags("--cluster.nodes=1", "--cluster.trainers_per_node=2", "--parallel.group_nodes=1"))
        self.wait_for(lambda: last_step(run) >= 20, "step 20")
        self.command("console", run, "-c", "inject corrupt_snapshot n0.1")
        self.finish(run, process, want)
        self.assertTrue([e for e in self.events(run, "bad_copy") if e["subject"] == "n0.1"], lines(run / "events.jsonl"))
        self.assertEqual([e["subject"] for e in self.events(run, "steps_undone")], ["1"])


if __name__ == "__main__":
    unittest.main()
