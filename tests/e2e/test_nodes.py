"""Lost nodes: a spare replaces the node, or the other group continues alone until the node is back. The bits are the same."""

import array
import pathlib
import signal

from common import TINY, Case, events, kill, last_step, leftovers, lines, status, tokens


def children(pid):
    """Processes that another one has started, but for a supervisor."""
    pids = []
    for listed in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += [child for child in map(int, listed.read_text().split())
                     if b"trainer" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()]
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended meanwhile
    return pids


class Nodes(Case):
    layout_flags = ["--cluster.nodes=2", "--cluster.trainers_per_node=2", "--parallel.group_nodes=1",
                    "--parallel.strategy=hybrid_shard", "--train.global_batch_size=16"]
    steps = 100

    def kill_node(self, run, name):
        node = next(n for n in status(run)["nodes"] if n["name"] == name)
        kill(node["pid"], *(t["pid"] for t in node["trainers"]))

    def begin(self, *more):
        """A run that is slowed down. Returns its nodes that train, too; the first one slows it down."""
        run, process = self.start("run", *self.layout_flags, f"--train.max_steps={self.steps}", *more)
        self.wait_for(lambda: last_step(run) >= 1, "a step")
        training = [n["name"] for n in status(run)["nodes"] if n["group"]]
        self.slow_down(run, training[0], fault="slow_node")
        self.wait_for(lambda: last_step(run) >= 5 and status(run)["standby"], "step 5 and a standby")
        return run, process, training

    def finish(self, run, process, want):
        self.go_on()
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, self.steps + 1)), "no step was trained twice")
        self.assertFalse(leftovers(run))

    def reference(self):
        return self.undisturbed(*self.layout_flags, f"--train.max_steps={self.steps}")

    def test_a_spare_replaces_a_dead_node(self):
        want = self.reference()
        run, process, training = self.begin("--cluster.spares=1")
        self.kill_node(run, training[1])
        self.wait_for(lambda: any("takes the place of" in e["reason"] for e in events(run, "joined")), "the spare")
        self.finish(run, process, want)

    def test_a_run_that_stops_while_a_node_is_diagnosed(self):
        run, process = self.start("run", *self.layout_flags, "--train.max_steps=1000000")
        self.wait_for(lambda: last_step(run) >= 5, "step 5")
        self.kill_node(run, "n1")
        self.wait_for(lambda: "a diagnosis: " in (run / "logs/n1.log").read_text(), "a diagnosis of n1")
        process.terminate()
        self.assertEqual(process.wait(60), 75, process.stdout.read())
        self.assertNotIn("Segmentation fault", (run / "logs/n1.log").read_text())

    def test_a_node_that_finds_other_tokens_does_not_come_back(self):
        """The other node has the tokens of the start open and goes on with them."""
        want = self.reference()
        run, process, _ = self.begin()
        other = self.folder / "other.bin"
        other.write_bytes(array.array("H", tokens(20000, TINY["model.vocab"])[::-1]).tobytes())
        other.rename(self.data)
        self.kill_node(run, "n1")
        self.wait_for(lambda: any(f"{self.data} has changed since this run began" in f.read_text(errors="replace")
                                  for f in (run / "logs").glob("*.log")), "n1 to notice it")
        self.go_on()
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)

    def test_a_run_of_which_all_nodes_find_other_tokens_ends_with_the_reason(self):
        run, process = self.start("run", *self.layout_flags, "--train.max_steps=1000000", "--checkpoint.disk_every_steps=100")
        self.wait_for(lambda: last_step(run) >= 5, "step 5")
        other = self.folder / "other.bin"
        other.write_bytes(array.array("H", tokens(20000, TINY["model.vocab"])[::-1]).tobytes())
        other.rename(self.data)
        for node in status(run)["nodes"]:
            kill(node["pid"])
        said = process.communicate(timeout=120)[0].splitlines()[-1]
        self.assertEqual(process.returncode, 65, said)
        self.assertIn(f"{self.data} has changed since this run began; restore it", said)

    def test_the_agent_sends_its_nodes_memory_while_no_trainer_of_it_starts(self):
        """JOB-1: one group, a spare and no copies on peers. Only its node's memory holds the newest step, and its trainers
        die at once."""
        layout = ["--cluster.nodes=1", "--cluster.trainers_per_node=2", "--parallel.strategy=full_shard", "--train.global_batch_size=2",
                  f"--train.max_steps={self.steps}"]
        want = self.undisturbed(*layout)
        run, process = self.start("run", *layout, "--cluster.spares=1", "--checkpoint.disk_every_steps=1000",
                                  "--supervision.warm_processes=0", "--checkpoint.peer_every_steps=0")
        self.wait_for(lambda: last_step(run) >= 20 and status(run)["standby"], "step 20 and a standby")
        name, agent = next((n["name"], n["pid"]) for n in status(run)["nodes"] if n["group"])
        joined = len(events(run, "joined"))

        def all_joined():
            kill(*children(agent))
            return len(events(run, "joined")) > joined

        self.wait_for(all_joined, "a generation without it")
        self.assertIn(f"takes the place of {name}", events(run, "joined")[-1]["reason"])
        self.assertFalse(events(run, "steps_undone"))
        self.finish(run, process, want)
        self.assertIn("the agent helped with 2 transfers", (run / "logs" / f"{name}.log").read_text())

    def test_without_a_spare_one_group_continues_until_the_node_is_back(self):
        want = self.reference()
        run, process, _ = self.begin()
        self.kill_node(run, "n1")
        self.wait_for(lambda: any("1 group instead of 2" in e["reason"] for e in events(run, "joined")), "one group")
        self.wait_for(lambda: events(run, "check_passed"), "the node's return and its diagnosis")
        self.wait_for(lambda: any("2 groups instead of 1" in e["reason"] for e in events(run, "layout_changed")), "two groups")
        self.finish(run, process, want)

    def test_a_partitioned_group_stops_training_when_its_network_is_back(self):
        # The whole group is partitioned: its collectives still work, and only the supervisor can tell it that it was replaced.
        run, process = self.start("run", "--cluster.nodes=1", "--cluster.trainers_per_node=2", "--cluster.spares=1",
                                  "--parallel.strategy=full_shard", "--train.max_steps=1000000", "--checkpoint.disk_every_steps=1000")
        self.wait_for(lambda: last_step(run) >= 20 and status(run)["standby"], "step 20 and a standby")
        document = status(run)
        cut = next(n["name"] for n in document["nodes"] if n["group"])
        self.assertEqual(document["generation"], 1)
        self.command("console", run, "-c", f"inject partition_node {cut} --ms 4500")
        self.wait_for(lambda: any(n["group"] for n in status(run)["nodes"] if n["name"] != cut), "the spare to train")
        self.wait_for(lambda: events(run, "node_up")[-1]["reason"] == "it came back", "the node to come back")
        self.wait_for(lambda: [t["state"] for n in status(run)["nodes"] if n["name"] == cut for t in n["trainers"]] == ["idle"] * 2,
                      "its trainers to leave the old generation", timeout=20)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_wrong_sum_is_detected_and_undone_and_its_node_examined(self):
        want = self.reference()
        run, process, _ = self.begin()
        self.command("console", run, "-c", "inject bitflip_gradient n1.0")
        self.wait_for(lambda: events(run, "check_passed"), "the diagnosis of n1")
        self.go_on()
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertEqual([e["subject"] for e in events(run, "suspected")], ["n1.0"])
