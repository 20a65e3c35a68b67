"""A run is extended, changed, resumed and branched; its folder tells one history."""

import json
import signal
import subprocess

from common import TINY, Case, events, last_step, leftovers, lines


class Continue(Case):
    def setUp(self):
        super().setUp()
        # A constant learning rate, so that the length of a run does not change its steps.
        self.flat = ["--train.global_batch_size=8", "--train.min_learning_rate=3e-3", "--train.warmup_iters=0", *self.layout(1, 1)]

    def hint(self, text):
        """The command line that the program printed for the user, as words."""
        words = next(line for line in text.splitlines() if "simplescale resume " in line).split()
        return words[words.index("resume") - 1:]

    def test_a_run_is_extended_and_changed_in_its_folder(self):
        want = self.undisturbed(*self.flat, "--train.max_steps=8")
        run = self.train("run", *self.flat, "--train.max_steps=4")
        self.train("run", *self.flat, "--train.max_steps=4")
        self.assertIn("is already finished at 4/4; to train longer: ", self.stderr)
        self.assertEqual([e["kind"] for e in lines(run / "events.jsonl")].count("started"), 1)
        command = self.hint(self.stderr)
        self.assertEqual(command[1:], ["resume", "run", "--train.max_steps=8"])
        done = subprocess.run([*command, "--checkpoint.keep=7"], cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("changed: train.max_steps was 4 and is now 8", done.stderr)
        self.assertIn("changed: checkpoint.keep was 3 and is now 7", done.stderr)
        self.assertIn("changed: the learning rate's cosine, planned to end at step 4, now ends at step 8", done.stderr)
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        changed = [(e["subject"], e["reason"]) for e in events(run, "changed")]
        self.assertIn(("train.max_steps", "was 4 and is now 8"), changed)
        manifest = json.loads((run / "control/manifest.json").read_text())
        self.assertIn(["checkpoint.keep", "was 3 and is now 7"], manifest["starts"][-1]["changes"])
        # The summary is of the whole run.
        losses = [m["loss"] for m in lines(run / "metrics.jsonl")]
        self.assertIn(f"training loss    {losses[0]:.4f} -> {losses[-1]:.4f}", done.stdout)
        self.train("run", *self.flat, "--train.max_steps=5", code=78)
        self.assertIn("is at step 8 already, beyond the new last step, 5", self.stderr)

    def test_another_model_or_data_order_is_refused_with_the_command_that_branches(self):
        run = self.train("run", *self.flat, "--train.max_steps=3")
        self.train("run", *self.flat, "--train.max_steps=3", "--run.seed=7", code=78)
        self.assertIn("run.seed was 1337 and is now 7", self.stderr)
        self.assertIn("train CONFIG --from run --run=NEW_FOLDER", self.stderr)
        self.train("branch", *self.flat, "--train.max_steps=2", "--from", run)
        self.train("branch", *self.flat, "--train.max_steps=4", code=78)
        self.assertRegex(self.stderr, r"branch began with the weights of \S+/run, and this command does not name them .*resume branch")
        self.command("resume", self.folder / "nothing", code=65)
        self.assertIn("no run in", self.stderr)
        self.assertTrue(run.exists())

    def test_a_branch_with_longer_samples_has_the_loss_of_the_short_ones(self):
        every = ["--train.validation_samples=10000", "--data.validation_fraction=0.05765"]  # 1153 tokens: 48 samples of 24, 12 of 96
        parent = self.train("parent", *self.flat, "--train.max_steps=60", *every)
        loss = [m["val_loss"] for m in lines(parent / "metrics.jsonl") if "val_loss" in m][-1]
        exported = self.folder / "exported"
        self.command("export", parent, exported)
        jumps = {}
        for name, flags in {"none": [], "llama3": ["--model.rope_scaling=llama3"], "yarn": ["--model.rope_scaling=yarn"],
                            "linear": ["--model.rope_scaling=linear"]}.items():
            for source in (parent, exported):
                run = self.train(f"{name}-{source.name}", *self.flat, "--train.max_steps=1", *every, "--model.block_size=96",
                                 "--train.validation_lengths=[24]", *flags, "--from", source)
                first = events(run, "validated")[0]
                self.assertEqual(first["step"], 0)
                jump = first["val_loss_at"]["24"] - loss
                self.assertAlmostEqual(jumps.setdefault(name, jump), jump, places=6, msg="an export is the same model")
                config = (run / "config.toml").read_text()
                if flags:
                    self.assertRegex(config, r"\nrope_factor = 4(.0)?\n")
                if name in ("llama3", "yarn"):
                    self.assertRegex(config, r"\nrope_original_block_size = 24\n")
                self.train(run.name, *self.flat, "--train.max_steps=1", *every, "--model.block_size=96",
                           "--train.validation_lengths=[24]", *flags, "--from", source)
                self.assertIn("already finished", self.stderr)
        self.assertLess(abs(jumps["none"]), 1e-6, jumps)
        for name in ("llama3", "yarn"):
            self.assertLess(abs(jumps[name]), 0.1, jumps)
        # Not stretched, and not what the parent was: refused, as before.
        self.train("same", *self.flat, "--train.max_steps=1", "--model.rope_scaling=yarn", "--from", parent, code=78)
        self.assertIn("set in [model]: rope_scaling = \"none\"", self.stderr)
        self.train("back", *self.flat, "--train.max_steps=1", "--model.block_size=192", "--from", self.folder / "yarn-parent", code=78)
        self.assertIn("rope_scaling = \"yarn\"", self.stderr)

    def test_a_branch_with_the_optimizer_continues_bit_for_bit_in_another_layout(self):
        want = self.undisturbed(*self.flat, "--train.max_steps=8")
        parent = self.train("parent", *self.flat, "--train.max_steps=5")
        other = ["--train.global_batch_size=8", "--train.min_learning_rate=3e-3", "--train.warmup_iters=0",
                 *self.layout(1, 2, "full_shard"), "--train.max_steps=8"]
        self.train("branch", *other, "--from", parent, "--with-optimizer")
        branch = self.folder / "branch"
        self.assertEqual(self.digest(branch), want)
        self.assertEqual([m["step"] for m in lines(branch / "metrics.jsonl")], [6, 7, 8])
        self.assertIn("valid", self.verify(branch))
        self.assertIn("begins with the weights of step 5 of", (branch / "events.jsonl").read_text())
        self.assertEqual(json.loads((branch / "control/manifest.json").read_text())["starts"][0]["from"],
                         {"path": str(parent), "with_optimizer": True, "step": 5,
                          "identity": "run " + (parent / "control/id").read_text().strip()})
        runs = {r["folder"].rpartition("/")[2]: r for r in json.loads(self.command("runs", self.folder, "--json"))}
        self.assertEqual((runs["branch"]["from"], runs["parent"]["from"]), (str(parent), ""))
        self.assertIn("parent", self.command("runs", self.folder))
        # The same command again continues the branch; it does not begin anew.
        self.train("branch", *other, "--from", parent, "--with-optimizer")
        self.assertIn("already finished at 8/8", self.stderr)
        self.train("late", *self.flat, "--train.max_steps=5", "--from", parent, "--with-optimizer", code=78)
        self.assertIn("is at step 5, and the run ends at step 5", self.stderr)

    def weights(self, source, average=False):
        """What `digest` prints of the weights or of their average, under the names of the weights."""
        found = [line for line in self.command("digest", source).splitlines()
                 if line.startswith(("model.", "lm_head.")) and ".exp_avg" not in line and (".ema " in line) == average]
        return [line.replace(".ema ", " ") for line in found]

    def test_an_average_of_the_weights_is_continued_branched_and_exported(self):
        ema, other = "--train.ema_decay=0.7", [*self.flat[:3], *self.layout(1, 2, "full_shard")]
        straight = self.train("straight", *self.flat, ema, "--train.max_steps=8")
        self.assertEqual(len(self.weights(straight, True)), len(self.weights(straight)))
        self.assertNotEqual(self.weights(straight, True), self.weights(straight))
        run = self.train("run", *self.flat, ema, "--train.max_steps=4")
        branch = self.train("branch", *other, ema, "--train.max_steps=8", "--from", run, "--with-optimizer")
        self.assertEqual(self.digest(branch), self.digest(straight))
        self.train("run", *other, ema, "--train.max_steps=8")
        self.assertEqual(self.digest(run), self.digest(straight))

        self.command("export", run, self.folder / "averaged", "--ema")
        self.command("import", self.folder / "averaged", self.folder / "imported")
        self.assertEqual(self.weights(self.folder / "imported"), self.weights(run, True))
        losses = [json.loads(self.command("evaluate", source, "--json", "--data", self.data, "--samples=8", *options))
                  for source, options in ((run, ["--ema"]), (self.folder / "imported", []), (run, []))]
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])

    def test_a_resumed_run_begins_or_ends_its_average(self):
        run = self.train("run", *self.flat, "--train.max_steps=4")
        self.assertEqual(self.weights(run, True), [])
        for command in (["export", run, self.folder / "hf"], ["evaluate", run], ["generate", run]):
            self.command(*command, "--ema", code=65)
            self.assertEqual(self.stderr.count("\n"), 1, self.stderr)
            self.assertIn("holds no average of the weights; a run keeps one with train.ema_decay", self.stderr)
        self.assertFalse((self.folder / "hf").exists())
        begins = "train.ema_decay was 0.0 and is now 0.7; the average begins with the weights of step 4"
        self.train("run", *self.flat, "--train.max_steps=6", "--train.ema_decay=0.7")
        self.assertIn("changed: " + begins, self.stderr)
        self.assertIn(begins.partition(" ")[2], [e["reason"] for e in events(run, "changed")])
        self.assertIn("valid", self.verify(run))
        branch = self.train("branch", *self.flat, "--train.max_steps=6", "--train.ema_decay=0.7", "--with-optimizer",
                            "--from", run / "checkpoints/step-00000004")
        self.assertEqual(self.digest(branch), self.digest(run))
        self.train("run", *self.flat, "--train.max_steps=8", "--train.ema_decay=0")
        straight = self.train("straight", *self.flat, "--train.max_steps=8")
        self.assertEqual(self.digest(run), self.digest(straight))

    def test_a_resumed_run_changes_the_precision_of_its_moments(self):
        run = self.train("run", *self.flat, "--train.max_steps=4")
        rounds = 'train.moments_precision was "fp32" and is now "bf16"; the moments of step 4 are rounded'
        self.train("run", *self.flat, "--train.max_steps=6", "--train.moments_precision=bf16")
        self.assertIn("changed: " + rounds, self.stderr)
        self.assertIn(rounds.partition(" ")[2], [e["reason"] for e in events(run, "changed")])
        branch = self.train("branch", *self.flat[:3], *self.layout(1, 2, "full_shard"), "--train.max_steps=6",
                            "--train.moments_precision=bf16", "--with-optimizer", "--from", run / "checkpoints/step-00000004")
        self.assertEqual(self.digest(branch), self.digest(run))
        self.assertIn(" bfloat16 ", self.command("digest", run))
        self.train("run", *self.flat, "--train.max_steps=8", "--train.moments_precision=fp32")
        self.assertIn("the moments of step 6 stay as they are", self.stderr)
        self.assertNotIn("bfloat16", self.command("digest", run))
        self.assertIn("valid", self.verify(run))
        self.command("export", branch, self.folder / "hf")

    def test_a_run_whose_file_says_its_length_in_iters_is_made_longer_in_steps(self):
        self.write_config({**TINY, "train.max_iters": 6})
        run = self.train("run", "--train.global_batch_size=2")
        self.train("run", "--train.global_batch_size=2")
        self.assertIn("--train.max_steps=", self.stderr)
        self.command("resume", run, "--train.max_steps=9")
        self.assertIn("train.max_iters = 6", self.stderr)
        self.assertEqual(last_step(run), 9)
        self.train("run", "--train.global_batch_size=2", "--train.max_steps=11")
        self.assertEqual(last_step(run), 11)
        self.assertIn("valid", self.verify(run))

    def test_a_branch_of_a_stable_run_decays_as_one_wsd_run_does(self):
        keys = ["--train.global_batch_size=8", "--train.warmup_steps=1", *self.layout(2, 1)]
        decay = ["--train.max_steps=8", "--train.schedule=wsd", "--train.decay_steps=3"]
        whole = self.train("whole", *keys, *decay)
        self.assertEqual(len({m["lr"] for m in lines(whole / "metrics.jsonl")}), 4)  # the last three are lower
        stable = self.train("stable", *keys, "--train.max_steps=5", "--train.schedule=constant")
        branch = self.train("decayed", *keys, *decay, "--from", stable, "--with-optimizer")
        self.assertEqual(self.digest(branch), self.digest(whole))

    def test_a_branch_begins_at_step_0_with_the_weights_of_a_run_or_an_export(self):
        parent = self.train("parent", *self.flat, "--train.max_steps=3")
        exported = self.folder / "exported"
        self.command("export", parent, exported)
        for name, begins_from in (("weights", parent), ("checkpoint", parent / "checkpoints/latest"), ("hugging", exported)):
            branch = self.train(name, *self.flat, "--train.max_steps=2", "--checkpoint.keep=9", "--from", begins_from)
            self.assertEqual([m["step"] for m in lines(branch / "metrics.jsonl")], [1, 2])
            weights, before = ([line for line in self.command("digest", source).splitlines()
                                if line.startswith(("model.", "lm_head.")) and "exp_avg" not in line]
                               for source in (branch / "checkpoints/step-00000000", parent))
            self.assertTrue(weights)
            self.assertEqual(weights, before, name)
        self.train("other", *self.flat, "--train.max_steps=2", "--model.layers=3", "--from", parent, code=78)
        self.assertIn("another shape", self.stderr)

    def test_a_stopped_run_says_so_everywhere_and_the_hint_continues_it(self):
        want = self.undisturbed(*self.flat, "--train.max_steps=60")
        run, process = self.start("run", *self.flat, "--train.max_steps=60")
        self.slow_down(run, fault="slow_node")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, said)
        step = last_step(run)
        reason = f"stopped by Ctrl-C at step {step} of 60"
        self.assertIn(reason, said)
        self.assertEqual((lines(run / "events.jsonl")[-1]["kind"], lines(run / "events.jsonl")[-1]["reason"]), ("stopped", reason))
        document = json.loads(self.command("status", run, "--json"))
        self.assertEqual(document["state"], "stopped")
        self.assertEqual({n["state"] for n in document["nodes"]} | {t["state"] for n in document["nodes"] for t in n["trainers"]},
                         {"ended"})
        self.assertEqual(json.loads(self.command("runs", run, "--json"))[0]["state"], "stopped")
        command = self.hint(said)
        self.assertEqual(command[1:], ["resume", "run"])
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.digest(run), want)

    def test_a_run_that_was_ended_before_it_saved_says_that_nothing_was_saved(self):
        run, process = self.start("run", *self.flat, "--train.max_steps=100000")
        self.wait_for(lambda: last_step(run) >= 1, "step 1")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        if not (run / "checkpoints/latest").exists():  # the second signal may come after the save
            self.assertIn("none: nothing was saved", said)

    def test_incidents_of_all_starts_have_their_own_numbers(self):
        self.flat += self.layout(2, 1)
        run = self.train("run", *self.flat, "--train.max_steps=5", '--inject.faults=[{step=3,kind="kill_trainer",target="n1.0"}]')
        self.train("run", *self.flat, "--train.max_steps=60", '--inject.faults=[{step=7,kind="kill_trainer",target="n0.0"}]')
        subjects = {}
        for event in lines(run / "events.jsonl"):
            if event["incident"]:
                subjects.setdefault(event["incident"], set()).add(event["subject"].partition(".")[0])
        self.assertEqual(sorted(subjects), [1, 2])
        self.assertIn("n1", subjects[1])
        self.assertNotIn("n1", subjects[2])
        self.assertEqual(json.loads(self.command("status", run, "--json"))["incidents"], 2)
        self.assertEqual(json.loads(self.command("runs", run, "--json"))[0]["recoveries"], 2)
        self.assertFalse(leftovers(run))
