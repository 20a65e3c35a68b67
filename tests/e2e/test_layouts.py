"""Deterministic mode: every layout and strategy gives the same bits for the same global batch (JOB-6)."""

import os

from common import Case, lines

STEPS = ["--train.global_batch_size=48", "--train.max_steps=30"]
# (groups, trainers per group, strategy). SIMPLESCALE_ALL_LAYOUTS=1 tests all layouts up to 4 x 4.
LAYOUTS = [(1, 1, "no_shard"), (1, 3, "shard_grad_op"), (1, 4, "full_shard"), (2, 2, "hybrid_shard"), (2, 2, "shard_grad_op"),
           (2, 2, "no_shard"), (3, 2, "hybrid_shard"), (4, 1, "no_shard"), (3, 3, "full_shard"), (4, 4, "hybrid_shard")]
if os.environ.get("SIMPLESCALE_ALL_LAYOUTS"):
    LAYOUTS = [(g, t, s) for g in range(1, 5) for t in range(1, 5) for s in ("full_shard", "hybrid_shard", "shard_grad_op", "no_shard")]


class Layouts(Case):
    def digests(self, layouts, *overrides, name=""):
        digests, losses = {}, {}
        for groups, trainers, strategy in layouts:
            run = self.train(f"{name}{groups}x{trainers}-{strategy}", *STEPS, *self.layout(groups, trainers, strategy), *overrides)
            digests[groups, trainers, strategy] = self.digest(run)
            losses[groups, trainers, strategy] = [m["loss"] for m in lines(run / "metrics.jsonl")]
        return digests, losses

    def test_every_layout_gives_the_same_bits_in_fp32(self):
        digests, losses = self.digests(LAYOUTS, "--train.global_batch_size=144", "--train.max_steps=10")
        self.assertEqual(len(set(digests.values())), 1, digests)
        first = next(iter(losses.values()))
        self.assertEqual(len(first), 10)
        self.assertLess(first[-1], first[0] - 0.3, "the loss falls")
        for layout, values in losses.items():
            self.assertEqual(values, first, layout)

    def test_layouts_give_the_same_bits_in_bf16(self):
        plain, _ = self.digests([(1, 1, "no_shard"), (2, 2, "hybrid_shard")], "--train.precision=bf16")
        self.assertEqual(len(set(plain.values())), 1, plain)

    def test_activation_checkpointing_changes_no_bit(self):
        run = self.train("run", *STEPS, *self.layout(1, 2, "full_shard"), "--train.activation_checkpointing=true")
        self.assertEqual(self.digest(run), self.undisturbed(*STEPS))

    def test_layouts_give_the_same_bits_with_muon_groups_z_loss_and_an_average(self):
        """And as a run of 2 x 2 that loses a trainer and an agent."""
        recipe = ["--train.optimizer=muon", "--train.z_loss=1e-3", "--train.ema_decay=0.9",
                  '--train.group=[{pattern="*norm*", learning_rate_factor=2.0, weight_decay=0.01},'
                  ' {pattern="*.0.mlp.*", learning_rate_factor=0.5}]']
        plain = self.undisturbed(*STEPS)
        for precision in ("fp32", "bf16"):
            options = [*recipe, f"--train.precision={precision}"]
            digests, losses = self.digests([(1, 1, "no_shard"), (1, 3, "full_shard"), (3, 1, "no_shard")], *options, name=f"muon-{precision}-")
            self.assertEqual(len(set(digests.values())), 1, digests)
            self.assertNotIn(plain, digests.values())
            self.assertLess(losses[1, 1, "no_shard"][-1], losses[1, 1, "no_shard"][0] - 0.3, "the loss falls")
        faults = '--inject.faults=[{step=7,kind="kill_trainer",target="n1.1"},{step=12,kind="kill_agent",target="n1"}]'
        run = self.train("faults", *STEPS, *self.layout(2, 2, "hybrid_shard"), *options, faults)
        self.assertEqual(self.digest(run), digests[1, 1, "no_shard"])
        self.assertIn("lm_head.weight.ema ", self.command("digest", run))

    def test_layouts_give_the_same_bits_with_moments_in_bf16(self):
        """With AdamW and Muon; and as a run of 2 x 2 that loses a trainer and an agent, is stopped, and continues on 1 x 3."""
        constant = [*STEPS, "--train.schedule=constant"]
        plain = self.train("plain", *constant)
        for optimizer in ("adamw", "muon"):
            options = ["--train.moments_precision=bf16", f"--train.optimizer={optimizer}", "--train.schedule=constant"]
            digests, losses = self.digests([(1, 1, "no_shard"), (2, 1, "no_shard")], *options, name=f"{optimizer}-")
            self.assertEqual(len(set(digests.values())), 1, digests)
            self.assertNotIn(self.digest(plain), digests.values())
            self.assertLess(losses[1, 1, "no_shard"][-1], losses[1, 1, "no_shard"][0] - 0.3, "the loss falls")
            faults = '--inject.faults=[{step=7,kind="kill_trainer",target="n1.1"},{step=12,kind="kill_agent",target="n1"}]'
            run = self.train(f"{optimizer}-faults", *STEPS, *self.layout(2, 2, "hybrid_shard"), *options, faults, "--train.max_steps=17")
            self.train(f"{optimizer}-faults", *STEPS, *self.layout(1, 3, "full_shard"), *options)
            self.assertEqual(self.digest(run), digests[1, 1, "no_shard"])
        for kind in ("exp_avg", "exp_avg_sq"):
            self.assertRegex(self.command("digest", run), rf"lm_head.weight.{kind} \[.*\] bfloat16 ")
        bytes_of = lambda folder: sum(f.stat().st_size for f in (folder / "checkpoints/latest").glob("shard-*"))
        self.assertAlmostEqual(bytes_of(run) / bytes_of(plain), 2 / 3, delta=0.03)

    def test_resident_experts_change_no_bit(self):
        """Nor which trainers have them, through validations, kills and a stop; groups of three gather them."""
        experts = ["--model.experts=8", "--model.expert_hidden=64", "--model.shared_experts=1", "--train.router_balance_loss=0.01",
                   "--train.validation_every_steps=10"]
        plain = self.train("gathered", *STEPS, *experts, *self.layout(1, 2, "full_shard"), "--parallel.experts=gathered")
        digest, losses = self.digest(plain), lines(plain / "metrics.jsonl")
        resident = [*experts, "--parallel.experts=resident"]
        for groups, trainers, strategy, more in ((1, 1, "no_shard", []), (1, 4, "shard_grad_op", []), (2, 2, "hybrid_shard", ["--parallel.wave=4"]),
                                                 (1, 8, "full_shard", ["--train.precision=fp32", "--train.activation_checkpointing=true"])):
            run = self.train(f"{groups}x{trainers}", *STEPS, *resident, *self.layout(groups, trainers, strategy), *more)
            self.assertEqual(self.digest(run), digest, (groups, trainers))
            self.assertEqual([m["loss"] for m in lines(run / "metrics.jsonl")], [m["loss"] for m in losses])
        faults = '--inject.faults=[{step=7,kind="kill_trainer",target="n1.1"},{step=12,kind="kill_agent",target="n0"}]'
        run = self.train("faults", *STEPS, *resident, *self.layout(2, 2, "hybrid_shard"), faults, "--train.max_steps=17", "--train.schedule=constant")
        again = self.train("plain", *STEPS, *experts, *self.layout(1, 1, "no_shard"), "--train.schedule=constant")
        self.train("faults", *STEPS, *experts, *self.layout(1, 3, "full_shard"), "--train.schedule=constant", "--parallel.experts=gathered")
        self.assertEqual(self.digest(run), self.digest(again))

    def test_resident_experts_need_shards_of_whole_experts(self):
        for trainers, experts, hidden, text in ((3, 8, 64, "trainers of a group cannot each have as many whole experts of 8; use"),
                                                (4, 8, 40, "experts of 8, since a shard is a multiple of 1024 parameters"),
                                                (2, 0, 64, "but the model has no experts")):
            self.command("config", "validate", self.config, *STEPS, f"--model.experts={experts}", f"--model.expert_hidden={hidden}",
                         "--parallel.experts=resident", *self.layout(1, trainers, "full_shard"), code=78)
            self.assertIn(text, self.stderr)
        shown = self.command("config", "show", self.config, *STEPS, "--model.experts=8", "--model.expert_hidden=64", *self.layout(1, 2, "full_shard"))
        self.assertRegex(shown, r"experts +gathered \(no group spans nodes\); a trainer sends \S+ MiB a step inside its group \(\S+ MiB with resident experts\)")

    def test_a_batch_warm_up_gives_the_same_bits_and_every_sample_once(self):
        """On all layouts, stopped within it, and with faults within it and at its end: 6 steps of 12 samples, 8 of 24, 16 of 48."""
        warmup = ["--train.batch_warmup=[{until_tokens=1500, global_batch_size=12}, {until_tokens=6000, global_batch_size=24}]",
                  "--train.schedule=constant", "--train.warmup_steps=1"]
        digests, losses = self.digests([(1, 1, "no_shard"), (1, 3, "full_shard"), (3, 1, "no_shard")], *warmup, name="warmup-")
        self.assertEqual(len(set(digests.values())), 1, digests)
        layout = self.layout(2, 2, "hybrid_shard")
        run = self.train("faults", *STEPS, *layout, *warmup, "--train.max_steps=10")
        self.assertIn("10 steps of 12 to 24 samples, each sample exactly once", self.verify(run))
        faults = ",".join(f'{{step={step},kind="{kind}",target="{target}"}}' for step, kind, target in
                          ((12, "kill_trainer", "n1.1"), (14, "kill_agent", "n1"), (15, "kill_trainer", "n0.0")))
        self.train("faults", *STEPS, *layout, *warmup, f"--inject.faults=[{faults}]")
        self.assertEqual(self.digest(run), digests[1, 1, "no_shard"])
        self.assertIn("30 steps of 12 to 48 samples, each sample exactly once", self.verify(run))
        steps = {m["step"]: m for m in lines(run / "metrics.jsonl")}
        self.assertEqual(steps[30]["tokens"], (6 * 12 + 8 * 24 + 16 * 48) * 24)
        self.assertEqual([m["loss"] for m in steps.values()], losses[1, 1, "no_shard"])

    def test_a_batch_warm_up_may_have_fewer_samples_than_there_are_trainers(self):
        """5 steps of 3 samples, then 24: of eight trainers three have a sample at first, and one group of four has none."""
        flags = [*STEPS, "--train.batch_warmup=[{until_tokens=360, global_batch_size=3}]", "--train.global_batch_size=24",
                 "--train.schedule=constant", "--train.warmup_steps=1", "--train.max_steps=9"]
        expected = self.digest(self.train("whole", *flags))
        for groups, trainers, strategy in ((4, 1, "no_shard"), (4, 2, "hybrid_shard"), (1, 4, "full_shard")):
            self.assertEqual(self.digest(self.train(f"{groups}x{trainers}", *flags, *self.layout(groups, trainers, strategy))), expected)
        run = self.train("faults", *flags, *self.layout(4, 2, "hybrid_shard"),
                         '--inject.faults=[{step=3,kind="kill_trainer",target="n0.1"},{step=4,kind="kill_trainer",target="n3.0"}]')
        self.assertEqual(self.digest(run), expected)
        self.assertIn("9 steps of 3 to 24 samples, each sample exactly once", self.verify(run))

    def test_a_batch_that_the_trainers_share_unevenly_gives_the_same_bits(self):
        """29 samples a step, more than any number of trainers divides: also while trainers and nodes die."""
        flags = [*STEPS, "--train.global_batch_size=29"]
        expected = self.undisturbed(*flags)
        digests, losses = self.digests([(1, 3, "full_shard"), (3, 2, "hybrid_shard"), (2, 2, "shard_grad_op")], *flags, name="uneven-")
        self.assertEqual(set(digests.values()), {expected})
        self.assertEqual(len({tuple(values) for values in losses.values()}), 1, "the same losses")
        for name, layout, targets in (("pairs", self.layout(2, 2, "hybrid_shard"), ("n1.1", "n1", "n0.0")),
                                      ("alone", self.layout(3, 1, "no_shard"), ("n2.0", "n0", "n1.0"))):
            faults = ",".join(f'{{step={step},kind="{kind}",target="{target}"}}' for step, kind, target in
                              zip((7, 12, 18), ("kill_trainer", "kill_agent", "kill_trainer"), targets))
            run = self.train(name, *flags, *layout, f"--inject.faults=[{faults}]")
            self.assertEqual(self.digest(run), expected)
            self.assertIn("30 steps of 29 samples, each sample exactly once", self.verify(run))
        text = self.command("config", "show", self.config, *flags, *self.layout(2, 2, "hybrid_shard"))
        self.assertIn("29 samples per step = 4 trainers x 7 or 8 accumulated x 1 sample", text)
        self.command("train", self.config, f"--run={self.folder}/few", *STEPS, "--train.global_batch_size=3", *self.layout(2, 2), code=78)
        self.assertIn("train.global_batch_size = 3 is less than 4 trainers x 1 sample", self.stderr)

    def test_waves_give_the_same_bits(self):
        """Micro-batches that pass a unit together: 29 samples in turns of at most 8, also while trainers and a node die."""
        flags = [*STEPS, "--train.global_batch_size=29"]
        expected = self.undisturbed(*flags)
        for wave, layout, more in ((4, (1, 3, "full_shard"), ["--train.activation_checkpointing=true"]), (8, (2, 1, "no_shard"), []),
                                   (2, (2, 2, "shard_grad_op"), [])):
            run = self.train(f"wave-{wave}", *flags, *self.layout(*layout), f"--parallel.wave={wave}", *more)
            self.assertEqual(self.digest(run), expected, layout)
        for wave, layout, targets in ((4, (2, 2, "hybrid_shard"), ("n1.1", "n1", "n0.0")), (8, (3, 1, "no_shard"), ("n2.0", "n0", "n1.0"))):
            faults = ",".join(f'{{step={step},kind="{kind}",target="{target}"}}' for step, kind, target in
                              zip((7, 12, 18), ("kill_trainer", "kill_agent", "kill_trainer"), targets))
            run = self.train(f"faults-{wave}", *flags, *self.layout(*layout), f"--parallel.wave={wave}", f"--inject.faults=[{faults}]")
            self.assertEqual(self.digest(run), expected)
            self.assertIn("30 steps of 29 samples, each sample exactly once", self.verify(run))
        self.command("train", self.config, f"--run={self.folder}/refused", *flags, "--parallel.wave=3", code=78)
        self.assertIn("parallel.wave = 3 is not a power of two", self.stderr)

    def test_layouts_give_the_same_bits_with_experts(self):
        flags = ["--model.experts=5", "--model.shared_experts=1", "--model.dense_layers=1", "--model.router_score=sigmoid",
                 "--model.router_bias=true", "--train.router_z_loss=1e-3", "--train.router_balance_loss=1e-2", "--train.optimizer=muon",
                 "--train.ema_decay=0.9", "--data.skip_samples=30-37"]
        digests, losses = self.digests([(1, 1, "no_shard"), (2, 2, "hybrid_shard"), (1, 3, "shard_grad_op")], *STEPS,
                                       "--train.global_batch_size=24", *flags)
        self.assertEqual(len(set(digests.values())), 1, digests)
        values = list(losses.values())
        self.assertEqual(values, values[:1] * 3)

    def test_layouts_give_the_same_bits_with_tied_embeddings(self):
        digests, _ = self.digests([(1, 1, "no_shard"), (2, 2, "hybrid_shard")], "--model.tie_embeddings=true")
        self.assertEqual(len(set(digests.values())), 1, digests)
