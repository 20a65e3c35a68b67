"""Copies in the memory of peer nodes, and damaged copies (STATE-2): the final bits are always the same."""

import time

from common import Case, events, kill, last_step, leftovers, lines, status


class Peers(Case):
    steps = 150
    # With an average of the weights: a part of the state that not every run has.
    common = ["--train.global_batch_size=8", "--parallel.strategy=hybrid_shard", "--train.ema_decay=0.9"]
    two_nodes = ["--cluster.nodes=2", "--cluster.trainers_per_node=1", "--parallel.group_nodes=2"]

    def flags(self, *layout):
        return [*self.common, f"--train.max_steps={self.steps}", *layout]

    def reference(self):
        return self.undisturbed(*self.flags())

    def nodes(self, run):
        return (status(run) or {"nodes": []})["nodes"]

    def node(self, run, name):
        return next(n for n in self.nodes(run) if n["name"] == name)

    def kept_steps(self, run):
        """The steps of which the spare keeps both shards."""
        steps = [{c["step"] for n in self.nodes(run) for c in n["peer_copies"] if c["shard"] == shard} for shard in (0, 1)]
        return sorted(steps[0] & steps[1])

    def kept(self, run):
        return max(self.kept_steps(run), default=0)

    def keeper_and_victim(self, run, step):
        """Waits for copies of the step or a newer one. Returns the node that keeps them, and a node of the group that does not
        run the supervisor."""
        self.wait_for(lambda: last_step(run) >= 20 and self.kept(run) >= step and status(run)["standby"], "copies on a peer")
        document = status(run)
        return (next(n["name"] for n in document["nodes"] if n["peer_copies"]),
                next(n["name"] for n in document["nodes"] if n["group"] and n["name"] != document["supervisor"]["node"]))

    def keeper_of_both(self, run, step):
        """Two nodes are the only group. Waits until the one that runs the supervisor keeps both shards of the step or a newer one.
        Returns it, the other node, and the step that it keeps."""
        self.wait_for(lambda: (status(run) or {}).get("standby"), "a standby")
        keeper = status(run)["supervisor"]["node"]

        def kept():
            steps = [{c["step"] for c in self.node(run, keeper)["peer_copies"] if c["shard"] == shard} for shard in (0, 1)]
            return max(steps[0] & steps[1], default=0)
        return keeper, {"n0": "n1", "n1": "n0"}[keeper], self.wait_for(lambda: kept() >= step and kept(), "copies of both shards on one node")

    def kill_with_its_memory(self, run, name):
        node = self.node(run, name)
        kill(node["pid"], *(t["pid"] for t in node["trainers"]))

    def reasons(self, run):
        return [e["reason"] for e in events(run, "joined", "layout_changed")]

    def begin(self, *layout):
        run, process = self.start("run", *self.flags(*layout))
        self.wait_for(lambda: last_step(run) >= 1, "a step")
        self.slow_down(run, next(n["name"] for n in self.nodes(run) if n["group"]), fault="slow_node")
        return run, process

    def finish(self, run, process, want):
        self.go_on()
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse(leftovers(run))

    def test_a_single_group_restores_a_lost_node_from_a_peer(self):
        want = self.reference()
        run, process = self.begin(*self.two_nodes, "--cluster.spares=1", "--checkpoint.peer_every_steps=5")
        keeper, victim = self.keeper_and_victim(run, 10)
        kept = self.kept(run)
        self.kill_with_its_memory(run, victim)
        self.finish(run, process, want)
        self.assertTrue([r for r in self.reasons(run) if f"{keeper} takes the place of {victim}" in r and "from peer" in r], self.reasons(run))
        again = [int(m["step"]) for m in lines(run / "metrics.jsonl") if m["generation"] > 1][0]
        self.assertGreater(again, kept, "not from the beginning")

    def test_a_single_group_without_a_spare_restores_a_lost_node_from_the_other_node(self):
        self.common = [*self.common, "--train.moments_precision=bf16"]
        want = self.reference()
        run, process = self.begin(*self.two_nodes, "--checkpoint.peer_every_steps=1")
        keeper, victim, kept = self.keeper_of_both(run, 10)
        self.kill_with_its_memory(run, victim)
        self.finish(run, process, want)
        self.assertTrue([r for r in self.reasons(run) if "from peer" in r], self.reasons(run))
        told = [e["sentence"] for e in events(run, "recovered")]
        self.assertTrue([t for t in told if f"Node {victim} was lost" in t and "to the copies of step" in t and "To avoid this: " in t], told)
        again = [int(m["step"]) for m in lines(run / "metrics.jsonl") if m["generation"] > 1][0]
        self.assertGreater(again, kept, "not from the beginning")

    def test_a_node_that_is_left_alone_saves_what_its_memory_holds_before_the_run_ends(self):
        want = self.reference()
        run, process = self.begin(*self.two_nodes, "--checkpoint.peer_every_steps=1", "--checkpoint.disk_every_steps=1000000",
                                  "--supervision.max_restarts=0", "--cluster.join_timeout_ms=5000", "--cluster.prefer=group_nodes")
        keeper, victim, kept = self.keeper_of_both(run, 10)
        self.kill_with_its_memory(run, victim)  # and nothing starts its agent again
        self.assertEqual(process.wait(60), 75, process.stdout.read())
        (end,) = events(run, "stopped")
        self.assertRegex(end["reason"], rf"missing: {victim} \(lost: .*\); step (\d+) was saved$")
        saved = int((run / "checkpoints/latest").readlink().name.removeprefix("step-"))
        self.assertGreaterEqual(saved, kept)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse(leftovers(run))
        self.command("resume", run, "--cluster.join_timeout_ms=120000")
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_damaged_peer_copy_is_skipped_for_the_older_one(self):
        want = self.reference()
        run, process = self.begin(*self.two_nodes, "--cluster.spares=1", "--checkpoint.peer_every_steps=20")
        keeper, victim = self.keeper_and_victim(run, 40)
        self.command("console", run, "-c", "pause")  # no newer copy replaces the damaged one
        self.wait_for(lambda: all(t["state"] == "idle" for n in self.nodes(run) for t in n["trainers"]), "a pause")
        sure = (last_step(run) - 1) // 20 * 20  # a pause that begins with a step may leave no time to copy that step
        late = time.monotonic() + 10  # a copy that takes longer than 20 steps leaves out the next one
        self.wait_for(lambda: self.kept(run) >= sure or time.monotonic() > late, "the newest copies")
        older = self.kept_steps(run)[-2]
        self.command("console", run, "-c", f"inject corrupt_snapshot {keeper}")
        self.kill_with_its_memory(run, victim)
        self.wait_for(lambda: events(run, "node_lost"), "the loss of the node")
        self.command("console", run, "-c", "resume")
        self.finish(run, process, want)
        from_peer = [r for r in self.reasons(run) if "from peer" in r]
        self.assertTrue(events(run, "bad_copy"), self.reasons(run))
        self.assertEqual(int(from_peer[-1].partition("at step ")[2].split()[0]), older, self.reasons(run))

    def test_a_corrupt_snapshot_is_detected_and_the_replica_is_used(self):
        want = self.reference()
        run, process = self.begin("--cluster.nodes=2", "--cluster.trainers_per_node=1", "--parallel.group_nodes=1")
        self.wait_for(lambda: last_step(run) >= 20, "step 20")
        self.command("console", run, "-c", "inject corrupt_snapshot n1.0", "-c", "inject kill_trainer n1.0")
        self.finish(run, process, want)
        found = [e for e in events(run, "bad_copy", "mismatch") if e["subject"] == "n1.0"]
        replaced = [r for r in self.reasons(run) if "shard moves" in r or "shards move" in r]  # it died one step behind and received a newer state
        self.assertTrue(found or replaced, lines(run / "events.jsonl"))
        undone = [int(e["subject"]) for e in events(run, "steps_undone")]
        self.assertLessEqual(sum(undone), 1, "at most the step that used the corrupt snapshot before it was checked")

    def test_a_single_group_undoes_steps_when_a_snapshot_is_corrupt(self):
        want = self.reference()
        run, process = self.begin("--cluster.nodes=1", "--cluster.trainers_per_node=2", "--parallel.group_nodes=1")
        self.wait_for(lambda: last_step(run) >= 20, "step 20")
        self.command("console", run, "-c", "inject corrupt_snapshot n0.1")
        self.finish(run, process, want)
        self.assertTrue([e for e in events(run, "bad_copy") if e["subject"] == "n0.1"], lines(run / "events.jsonl"))
        self.assertTrue(events(run, "steps_undone"))
