"""`train --join RUN`: nodes that join a run which trains, and nodes that leave it for good. The hosts are commands on this one,
which share the run's folder. JOB-7, LOCK-2."""

import json
import signal
import subprocess

from common import PROGRAM, EndlessRun, kill, last_step, leader, lines, status


class Join(EndlessRun):
    def setUp(self):
        super().setUp()
        self.keys = ["--train.global_batch_size=12", *self.layout(2, 1), "--cluster.max_nodes=6", "--supervision.max_restarts=100",
                     "--train.schedule=constant", "--train.warmup_steps=0", "--cluster.threads_per_trainer=1"]
        self.joined = []

    def begin(self, *more):
        self.train_endlessly(*self.keys, *more)

    def join(self, *more, code=None):
        """Calls the command of one more host. code: with which it ends, if it is refused. Returns the process, or what it says."""
        errors = open(self.folder / f"join-{len(self.joined)}", "a+")
        process = subprocess.Popen([PROGRAM, "train", "--join", self.run_folder, *more], cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(errors.close)
        if code is None:
            self.joined.append(process)
            return process
        self.assertEqual(process.wait(60), code)
        errors.seek(0)
        return errors.read()

    def trains_with(self, *names):
        """Waits until exactly these nodes train, and further steps are made."""
        def is_so():
            document = status(self.run_folder)
            return document and document["state"] == "training" and \
                {n["name"] for n in document["nodes"] if n["group"] is not None} == set(names)
        self.wait_for(is_so, f"training with {names}")
        at = last_step(self.run_folder)
        self.wait_for(lambda: last_step(self.run_folder) >= at + 3, "further steps")

    def gap(self, names):
        """Seconds without a committed step around the newest generation in which these nodes began to train."""
        began = max(e["time"] for e in self.events("layout_changed", "joined") if all(name in e["reason"] for name in names))
        times = [m["time"] for m in lines(self.run_folder / "metrics.jsonl")]
        return min(t for t in times if t > began) - max(t for t in times if t <= began)

    def check(self):
        """The bits are those of as many steps on one node."""
        self.assertIn("each sample exactly once", self.verify(self.run_folder))
        steps = last_step(self.run_folder)
        same = self.train("reference", *self.keys, *self.layout(1, 1), "--cluster.max_nodes=0", f"--train.max_steps={steps}")
        self.assertEqual(self.digest(self.run_folder), self.digest(same))

    def test_two_six_and_two_nodes_with_kills(self):
        self.keys += ["--model.experts=4", "--model.router_bias=true"]
        self.begin()
        names = [f"n{i}" for i in range(6)]
        for _ in range(4):
            self.join()
        self.trains_with(*names)
        ups = {e["subject"]: e["reason"] for e in self.events("node_up")}
        self.assertEqual({name for name, reason in ups.items() if reason == "it joins the running job"}, set(names[2:]))
        grown = [e for e in self.events("layout_changed") if "6 groups instead of 2" in e["reason"]]
        self.assertEqual(len(grown), 1, self.events("layout_changed"))  # one generation
        print(f"growth from 2 to 6 nodes: {self.gap(names[2:]):.3f} s without a committed step")
        # A trainer of a node that has joined, a command that takes its node with it, and the supervisor die.
        document = status(self.run_folder)
        kill(next(t["pid"] for n in document["nodes"] for t in n["trainers"] if t["name"] == "n4.0"))
        self.wait_for(lambda: self.events("recovered"), "the recovery")
        kill(self.joined[1].pid)
        self.wait_for(lambda: self.events("node_lost"), "the loss of a node")
        lost = self.events("node_lost")[0]["subject"]
        self.trains_with(*set(names) - {lost})
        kill(leader(self.run_folder)[1])
        self.wait_for(lambda: self.events("took_over"), "another supervisor")
        # Its name is free for the next host, which is examined, as any node that comes back.
        self.join()
        self.trains_with(*names)
        # Nodes leave: by the console, by a signal.
        self.console("remove n2")
        self.wait_for(lambda: self.events("removed"), "n2 to leave")
        self.trains_with(*set(names) - {"n2"})
        self.wait_for(lambda: any(p.poll() == 0 for p in self.joined), "the command of n2 to end")
        for process in self.joined:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        self.trains_with("n0", "n1")
        for process in self.joined:
            if process != self.joined[1]:
                self.assertEqual(process.wait(60), 0)
        self.assertEqual({n["name"] for n in status(self.run_folder)["nodes"]}, {"n0", "n1"})
        self.stop()
        self.check()

    def test_the_node_of_the_supervisor_is_removed(self):
        """Its standby leads, and the command that began the run goes on with its other nodes."""
        self.begin("--cluster.max_nodes=3")
        self.join()
        self.trains_with("n0", "n1", "n2")
        self.wait_for(lambda: status(self.run_folder)["standby"], "a standby")
        term, _, node = leader(self.run_folder)
        self.console(f"remove {node}")
        self.wait_for(lambda: leader(self.run_folder)[0] > term, "another supervisor")
        self.trains_with(*{"n0", "n1", "n2"} - {node})
        self.assertNotIn(node, [n["name"] for n in status(self.run_folder)["nodes"]])
        self.stop()
        self.check()

    def test_a_host_that_does_not_fit_is_refused(self):
        self.begin("--cluster.max_nodes=3")
        self.assertIn("--join takes the configuration of the run", self.join("--train.learning_rate=0.1", code=64))
        self.join()
        self.trains_with("n0", "n1", "n2")
        self.assertIn("all 3 nodes of", self.join(code=78))
        manifest = self.run_folder / "control/manifest.json"
        was = manifest.read_text()
        changed = json.loads(was)
        changed["starts"][-1]["signature"]["fields"]["arithmetic.version"] = "0"  # another program began it
        manifest.write_text(json.dumps(changed))
        self.assertIn("another numerics signature: arithmetic.version was 0", self.join(code=78))
        manifest.write_text(was)
        self.stop()
        self.assertIn("does not train now (stopped by SIGTERM", self.join(code=78))
        self.run_folder = self.folder / "nothing"
        self.assertIn("no run in", self.join(code=65))

    def test_a_run_of_fixed_size_is_not_joined(self):
        self.begin("--cluster.max_nodes=0")
        self.assertIn("began with all 2 nodes that it may have", self.join(code=78))
        self.stop()


