"""Validations during training, and the checkpoints with the lowest validation loss."""

import json
import os

from common import TINY, Case, events, kill, last_step, lines, status, tokens, trainer_pids


def val_losses(run):
    """By step; the last line of a step counts."""
    return {m["step"]: m["val_loss"] for m in lines(run / "metrics.jsonl") if "val_loss" in m}


def validated(run):
    return {e["step"]: e["val_loss"] for e in events(run, "validated")}


class Validation(Case):
    def test_the_same_loss_on_every_layout_training_undisturbed_and_the_best_checkpoint_kept(self):
        flags = ["--train.max_steps=10", "--train.global_batch_size=8", "--train.validation_samples=8", "--train.learning_rate=0.5",
                 "--train.min_learning_rate=0.5"]  # so high that the loss goes up and down
        without = self.train("without", *flags)
        self.assertEqual(set(validated(without)), {0, 10})
        flags += ["--train.validation_every_steps=2", "--checkpoint.disk_every_steps=2", "--checkpoint.keep=1", "--checkpoint.keep_best=1"]
        one = self.folder / "one"
        told = self.command("train", self.config, f"--run={one}", *flags)
        four = self.train("four", *flags, *self.layout(2, 2))
        self.assertEqual(self.digest(one), self.digest(without))
        self.assertEqual(self.digest(four), self.digest(without))
        losses = validated(one)
        self.assertEqual(list(losses), [0, 2, 4, 6, 8, 10])
        self.assertEqual(losses, validated(four))
        self.assertEqual({**val_losses(one), 0: losses[0]}, losses)
        self.assertEqual([m["step"] for m in lines(four / "metrics.jsonl")], list(range(1, 11)))
        self.assertEqual({s: losses[s] for s in (0, 10)}, validated(without))

        best = min((loss, step) for step, loss in losses.items() if step > 0)[1]
        self.assertRegex(told, r"best checkpoint +\S*checkpoints/best")
        lowest = min(losses, key=losses.get)
        if lowest < 10:
            self.assertIn(f"lowest           {losses[lowest]:.4f} at step {lowest}", told)
        for run in (one, four):
            self.assertEqual(os.readlink(run / "checkpoints/best"), f"step-{best:08}")
            self.assertEqual({p.name for p in (run / "checkpoints").iterdir()} - {"latest", "best", "owner"},
                             {f"step-{best:08}", "step-00000010"})
        evaluated = json.loads(self.command("evaluate", four / "checkpoints/best", "--json"))
        self.assertAlmostEqual(evaluated["val_loss"], losses[best], places=4)
        self.assertIn("valid", self.verify(four))

        # A longer start validates step 10, with which it begins, again; that is no news.
        self.train("one", *flags, "--train.max_steps=12")
        steps = [e["step"] for e in events(one, "validated")]
        self.assertEqual(steps, [0, 2, 4, 6, 8, 10, 12])

    def test_losses_by_length_and_by_position_are_the_same_on_every_layout(self):
        flags = ["--train.max_steps=4", "--train.global_batch_size=8", "--train.validation_samples=8", "--train.validation_every_steps=2",
                 "--train.validation_lengths=[6, 24, 1]"]
        without = self.train("without", *flags[:-1])
        one, four = self.train("one", *flags), self.train("four", *flags, *self.layout(2, 2))
        self.assertEqual(self.digest(one), self.digest(without))
        of = lambda run, key: {m["step"]: m[key] for m in lines(run / "metrics.jsonl") if key in m}
        for key in ("val_loss", "val_loss_at", "val_loss_by_position"):
            self.assertEqual(of(one, key), of(four, key))
            self.assertEqual(list(of(one, key)), [2, 4])
        self.assertEqual(of(one, "val_loss"), of(without, "val_loss"))
        self.assertEqual(of(one, "val_loss_by_position"), of(without, "val_loss_by_position"))
        self.assertEqual(of(without, "val_loss_at"), {})
        for step, by in of(one, "val_loss_by_position").items():
            self.assertEqual(list(by), ["0", "1", "16", "2", "4", "8"])
            counts = {"0": 1, "1": 1, "2": 2, "4": 4, "8": 8, "16": 8}
            self.assertAlmostEqual(sum(by[p] * n for p, n in counts.items()) / 24, of(one, "val_loss")[step], places=6)
            self.assertEqual(of(one, "val_loss_at")[step]["24"], of(one, "val_loss")[step])
            self.assertEqual(len(set(of(one, "val_loss_at")[step].values())), 3)
        self.assertEqual(events(one, "validated")[-1]["val_loss_at"], of(one, "val_loss_at")[4])
        # A model with samples of that length has the same loss on the same tokens.
        every = ["--train.validation_samples=10000", "--data.validation_fraction=0.0601"]  # 1202 tokens: 50 samples of 24, 200 of 6
        long = self.train("long", *flags, *every)
        short = self.train("short", "--train.max_steps=1", "--train.micro_batch_size=4", *every, "--model.block_size=6", "--from", long)
        self.assertAlmostEqual(validated(short)[0], of(long, "val_loss_at")[4]["6"], places=6)

    def test_processes_that_die_during_a_validation_cost_no_step_and_no_loss(self):
        self.data.write_bytes(tokens(60000, TINY["model.vocab"]).tobytes())
        flags = ["--train.max_steps=12", "--train.global_batch_size=8", "--data.validation_fraction=0.5",
                 "--train.validation_samples=1200", "--train.validation_every_steps=5", "--checkpoint.disk_every_steps=5",
                 *self.layout(2, 2)]
        reference = self.train("reference", *flags)
        run, process = self.start("run", *flags)

        def validates(step):  # its state is being written, which trainers do not wait for
            return last_step(run) == step - 1 and any((run / "checkpoints").glob(f"tmp-{step:08}-*"))

        self.wait_for(lambda: validates(5), "the validation of step 5")
        kill(trainer_pids(run)["n1.0"])
        self.wait_for(lambda: validates(10) and status(run)["standby"], "the validation of step 10")
        kill(status(run)["supervisor"]["pid"])
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), self.digest(reference))
        self.assertEqual(validated(run), validated(reference))
        self.assertEqual(val_losses(run), val_losses(reference))
        self.assertEqual(set(val_losses(run)), {5, 10, 12})
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertGreaterEqual(next(e for e in events(run, "took_over"))["step"], 9)
        steps = [m["step"] for m in lines(run / "metrics.jsonl")]
        self.assertEqual(sorted(steps), sorted([*range(1, 13), 5]), "step 5 has another line, with its validation loss")
        self.assertTrue(all(m["loss"] for m in lines(run / "metrics.jsonl")))
