"""`set train.learning_rate` changes the rate of the next step on all trainers, and every replay of a step uses the same rate."""

import shutil
import signal

from common import TINY, Case, events, kill, last_step, lines, status, trainer_pids


class LearningRate(Case):
    def test_a_changed_rate_survives_recoveries_a_takeover_and_a_resumption(self):
        keys = [*self.layout(2, 1), "--train.max_steps=150", "--train.global_batch_size=8", "--checkpoint.disk_every_steps=50"]
        run, process = self.start("run", *keys)
        self.slow_down(run, fault="slow_node")
        self.wait_for(lambda: last_step(run) >= 5 and status(run)["standby"], "step 5 and a standby")
        self.assertIn("train.learning_rate = 0.001 from the next step on", self.command("console", run, "-c", "set train.learning_rate 0.001"))
        self.assertIn("train.learning_rate = 0.001", self.command("console", run, "-c", "set"))
        self.command("console", run, "-c", "set train.learning_rate 2", code=64)
        first = int(self.wait_for(lambda: events(run, "learning_rate"), "the change")[0]["reason"].split("step ")[1].split()[0])
        self.assertEqual(events(run, "set")[0]["subject"], "train.learning_rate")
        self.wait_for(lambda: last_step(run) >= first + 3, "steps with the new rate")
        kill(trainer_pids(run)["n1.0"])
        self.wait_for(lambda: events(run, "recovered"), "the recovery")
        kill(status(run)["supervisor"]["pid"])
        self.wait_for(lambda: events(run, "took_over"), "the takeover")
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 3, "steps afterwards")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        stopped = last_step(run)
        self.assertLess(first, stopped)
        self.train("run", *keys)  # resumes
        self.verify(run)

        # The same change without a failure.
        (self.folder / "same/control").mkdir(parents=True)
        shutil.copy(run / "control/learning_rates.json", self.folder / "same/control")
        same = self.train("same", *keys)
        self.assertEqual(self.digest(run), self.digest(same))
        rates = [{m["step"]: m["lr"] for m in lines(folder / "metrics.jsonl")} for folder in (run, same)]
        self.assertEqual(*rates)
        self.assertAlmostEqual(rates[0][first] / rates[0][first - 1], 1 / 3, delta=.02)
        self.assertEqual({(e["step"], e["learning_rate"]) for e in lines(same / "ledger.jsonl") if "learning_rate" in e}, {(first, .001)})

    def test_a_branch_with_the_optimizer_takes_a_rate_that_was_set(self):
        keys = ["--train.schedule=constant", "--train.warmup_steps=0"]
        parent, process = self.start("parent", *keys, "--train.max_steps=100000", "--checkpoint.disk_every_steps=50")
        self.wait_for(lambda: last_step(parent) >= 10, "step 10")
        self.command("console", parent, "-c", "set train.learning_rate 0.001")
        self.wait_for(lambda: lines(parent / "metrics.jsonl")[-1]["lr"] == .001, "a step with the new rate")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        end = f"--train.max_steps={last_step(parent) + 3}"

        def rates(name, *more, source=parent):
            run = self.train(name, *keys, end, "--from", source, "--with-optimizer", *more)
            self.said = self.stderr
            self.verify(run)
            return {m["lr"] for m in lines(run / "metrics.jsonl")}

        self.assertEqual(rates("branch"), {.001})
        self.assertIn("goes on with 0.001, which was set in the console of parent", self.said)
        self.assertEqual(rates("of_step", source=parent / "checkpoints/latest"), {.001})
        self.assertEqual(rates("said", "--train.learning_rate=3e-3"), {.003})
        self.assertIn("is 0.003, as this run says, not 0.001", self.said)
        self.assertEqual(rates("other", "--train.learning_rate=2e-3"), {.002})
        self.write_config({**TINY, "train.learning_rate": 2e-3})
        self.assertEqual(rates("of_file"), {.002})
        self.write_config(TINY)
        end = f"--train.max_steps={last_step(parent) + 5}"
        self.assertEqual(rates("grandchild", source=self.folder / "branch"), {.001})
