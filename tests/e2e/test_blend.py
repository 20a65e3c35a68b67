"""Mixtures of sources: stages, recoveries and layouts (MIX-1, MIX-2), changes of a mixture, and wrong ones."""

import json
import pathlib
import shutil
import signal

from common import TINY, Case, kill, last_step, lines, tokens, trainer_pids

# 24 tokens a sample, 4 samples a step. Stages begin in the middle of steps 4 and 8.
BLEND = """
[[data.blend]]
name = "web"
source = "web.bin"
weight = 0.7
[[data.blend]]
name = "code"
source = "code.bin"
weight = 0.3
[[data.blend]]
name = "math"
source = "math.bin"
"""
STAGES = """
[[data.stage]]
from_tokens = 336
weights = { web = 1, math = 2 }
[[data.stage]]
from_tokens = 700
weights = { code = 1 }
"""
STEPS = ["--train.global_batch_size=4", "--checkpoint.disk_every_steps=2", "--train.validation_every_steps=4"]


class Blend(Case):
    def setUp(self):
        super().setUp()
        for name, count in (("web", 6000), ("code", 3000), ("math", 900)):
            (self.folder / f"{name}.bin").write_bytes(tokens(count, TINY["model.vocab"]).tobytes())
        self.blend(BLEND + STAGES)

    def blend(self, text):
        keys = {**TINY, "data.source": '""'}
        self.write_config(keys)
        self.config.write_text(self.config.read_text() + text)

    def refused(self, code, said, *overrides, run="refused"):
        self.command("train", self.config, f"--run={self.folder / run}", *STEPS, *overrides, code=code)
        self.assertEqual(len([l for l in self.stderr.splitlines() if l.startswith("simplescale: ") and "warning" not in l]), 1, self.stderr)
        self.assertIn(said, self.stderr)
        if run == "refused":
            self.assertFalse((self.folder / run / "logs").exists(), "nothing was started")

    def test_layouts_and_recoveries_in_the_middle_of_stages_give_the_same_bits(self):
        flags = [*STEPS, "--train.max_steps=12"]
        one = self.train("one", *flags)
        expected = self.digest(one)
        shown = self.command("config", "show", self.config, *flags)
        self.assertRegex(shown, r"code +2970 +123 +\d+ +\d+\.\d+ % +0\.\d+")
        run, process = self.start("two", *flags, *self.layout(2, 2, "full_shard"), "--train.max_steps=12")
        self.wait_for(lambda: last_step(run) >= 4, "step 4, in the second stage")
        kill(trainer_pids(run)["n1.0"])
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), expected)
        # Stopped in a stage, resumed in another layout.
        three = self.train("three", *STEPS, "--train.max_steps=5", "--train.schedule=constant")
        self.train("three", *STEPS, "--train.max_steps=12", "--train.schedule=constant", *self.layout(2, 1))
        again = self.train("four", *STEPS, "--train.max_steps=12", "--train.schedule=constant")
        self.assertEqual(self.digest(three), self.digest(again))
        # The ledger tells what was seen: 14 samples of web 7 to code 3, 16 of web 1 to math 2, and 18 of code.
        verified = self.verify(run)
        for seen in ("code: 22 samples seen", "math: 11 samples seen", "epochs of 37 samples"):
            self.assertIn(seen, verified)
        mixture = json.loads((one / "checkpoints/latest/manifest.json").read_text())["resume"]["mixture"]
        self.assertEqual([s["trained_samples"] for s in mixture["sources"]], [15, 22, 11])
        self.assertEqual([s["from_sample"] for s in mixture["stages"]], [0, 14, 30])
        losses = [m["val_losses"] for m in lines(run / "metrics.jsonl") if "val_losses" in m]
        self.assertEqual(losses, [m["val_losses"] for m in lines(one / "metrics.jsonl") if "val_losses" in m])
        self.assertEqual(set(losses[-1]), {"web", "code", "math"})
        self.assertIsNone(losses[-1]["math"], "its nine validation tokens are no sample")
        evaluated = json.loads(self.command("evaluate", one, "--json"))
        self.assertEqual(set(evaluated["val_losses"]), {"web", "code"})
        # A checkpoint that other samples made, or a ledger that lacks some, is found.
        text = (one / "config.toml").read_text()
        (one / "config.toml").write_text(text.replace('"web" = 1.0', '"web" = 2.0'))
        self.assertIn("was made with another mixture than config.toml has", self.command("verify", one, code=65))

    def test_a_whole_recipe_gives_the_same_bits_on_every_layout_and_after_a_kill_and_a_stop(self):
        """Stages of a blend, documents, experts, Muon, an average of the weights and WSD at once."""
        recipe = [*STEPS, "--train.max_steps=40", "--data.document_mask=true", "--data.document_end=11",
                  "--data.document_boundary_loss=false", "--train.optimizer=muon", "--train.ema_decay=0.9", "--train.z_loss=1e-4",
                  "--train.schedule=wsd", "--train.decay_steps=10", "--train.warmup_steps=5",
                  "--model.experts=4", "--train.router_z_loss=1e-3"]
        one = self.train("one", *recipe)
        expected = self.digest(one)
        self.assertEqual(self.digest(self.train("2x1", *recipe, *self.layout(2, 1, "no_shard"))), expected)
        faults = '--inject.faults=[{step=6,kind="kill_trainer",target="n1.1"},{step=20,kind="kill_agent",target="n1"}]'
        killed = self.train("killed", *recipe, *self.layout(2, 2), faults)
        self.assertEqual(self.digest(killed), expected)
        run, process = self.start("stopped", *recipe, *self.layout(2, 2))
        self.slow_down(run)
        self.wait_for(lambda: last_step(run) >= 5, "step 5")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, said)
        self.assertLess(last_step(run), 40)
        self.train("stopped", *recipe, *self.layout(2, 1))
        self.assertEqual(self.digest(run), expected)
        for done in (killed, run):
            self.assertIn("each sample exactly once", self.verify(done))
        self.assertIn("lm_head.weight.ema ", self.command("digest", run))

    def test_a_mixture_is_changed_by_a_new_stage_and_by_nothing_else(self):
        self.blend(BLEND)
        run = self.train("run", *STEPS, "--train.max_steps=4")
        seen = [(l["step"], l["samples"]) for l in lines(run / "ledger.jsonl")]
        self.blend(BLEND.replace("0.7", "0.6"))
        self.refused(78, "from_tokens = 384 or more", "--train.max_steps=6", run="run")
        self.blend(BLEND.replace("web.bin", "other.bin"))
        (self.folder / "other.bin").write_bytes(tokens(5000, TINY["model.vocab"]).tobytes())
        self.refused(78, 'data.blend: "web": the run was trained on ', "--train.max_steps=6", run="run")
        stage = "[[data.stage]]\nfrom_tokens = 384\nweights = { new = 1, web = 1 }\n"
        self.blend(BLEND + '[[data.blend]]\nname = "new"\nsource = "other.bin"\n' + stage)
        self.train("run", *STEPS, "--train.max_steps=6")
        changed = [e for e in lines(run / "events.jsonl") if "data.stage" in e["reason"] + e["subject"]]
        self.assertTrue(changed, "an event tells the change")
        self.assertEqual(seen, [(l["step"], l["samples"]) for l in lines(run / "ledger.jsonl")][: len(seen)])
        self.assertIn("new: 4 samples seen", self.verify(run))
        self.blend(BLEND + '[[data.blend]]\nname = "new"\nsource = "other.bin"\n' + stage.replace("new = 1", "new = 3"))
        self.refused(78, "from sample 16 on the weights were web 1, new 1 and are now web 1, new 3", "--train.max_steps=8", run="run")

    def test_wrong_mixtures_are_named_in_one_line_and_nothing_starts(self):
        """All that a table can have wrong: blend_test.cpp."""
        for wrong, right, code, said in (("web = 1, math", "webs = 1, math", 78, "did you mean 'web'?"),
                                         ("code.bin", "missing.bin", 65, "there is no such file or folder")):
            self.blend((BLEND + STAGES).replace(wrong, right))
            self.refused(code, said, "--train.max_steps=4")
        self.blend(BLEND)
        (self.folder / "code.bin").write_bytes(b"\1\0" * 5)
        self.refused(65, "fewer than one sample", "--train.max_steps=4")
        self.assertFalse(pathlib.Path(self.folder / "refused" / "events.jsonl").exists())

    def test_texts_of_a_blend_share_a_tokenizer(self):
        words = "the river carries small boats past quiet villages while old men repair nets and sing about storms".split()
        for name, step in (("a", 1), ("b", 5)):
            (self.folder / f"{name}.txt").write_text("\n".join(" ".join(words[(i * k * step) % 17] for k in range(3, 40)) for i in range(400)))
        text = "".join(f'[[data.blend]]\nname = "{n}"\nsource = "{n}.txt"\nweight = {w}\n' for n, w in (("a", 2), ("b", 1)))
        self.blend(text)
        flags = ["--model.vocab=320", "--train.max_steps=6", *STEPS, f"--data.folder={self.folder}/prepared"]
        self.assertIn("epochs are known once the text is prepared", self.command("config", "show", self.config, *flags))
        self.command("prepare", self.config, *flags)
        self.assertRegex(self.stderr, r"training a tokenizer \(byte_bpe, 320 tokens\) on \S*a\.txt \(66\.7 %\), \S*b\.txt \(33\.3 %\)")
        run = self.train("run", *flags)
        models = [(self.folder / "prepared" / n / "tokenizer.json").read_bytes() for n in ("a", "b")]
        self.assertEqual(models[0], models[1])
        self.assertIn("a: 16 samples seen", self.verify(run))
        # What prepare can make again is no error, neither before it does nor when another source is new.
        (self.folder / "prepared/a/train.bin").unlink()
        shutil.rmtree(self.folder / "prepared/b")
        self.command("config", "validate", self.config, *flags)
        self.assertEqual(self.digest(self.train("again", *flags)), self.digest(run))

    def test_a_text_is_prepared_once_where_another_text_of_the_blend_trains_a_new_tokenizer(self):
        words = "the river carries small boats past quiet villages while old men repair nets and sing about storms".split()
        for name, step in (("a", 1), ("b", 5), ("c", 3)):
            (self.folder / f"{name}.txt").write_text("\n".join(" ".join(words[(i * k * step) % 17] for k in range(3, 40)) for i in range(400)))
        for first, count in (("a", 2), ("c", 4)):  # "c": the default folders hold the tokens of "a" and its tokenizer
            self.blend("".join(f'[[data.blend]]\nname = "{name}"\nsource = "{source}.txt"\nweight = 1\n' for name, source in (("x", first), ("y", "b"))))
            flags = ["--model.vocab=320", "--train.max_steps=2", '--run.name="one"']
            runs = [self.train(f"{first}-{kind}", *flags) for kind in ("new", "prepared")]
            self.assertEqual(*map(self.digest, runs))
            manifests = sorted(self.folder.glob("data/one/*/manifest.json"))
            self.assertEqual(len(manifests), count, manifests)
            self.command("prepare", self.config, *flags)
            self.assertEqual(self.stderr, "")
            self.assertEqual(sorted(self.folder.glob("data/one/*/manifest.json")), manifests)

    def test_sources_have_their_own_keys_and_formats(self):
        """As one that had renamed its members and moved its files: the same bits."""
        chat = [(f"question {i * i % 97} about boats ", f"the answer is {i * 7 % 89}") for i in range(600)]
        for file, text, mask in (("own", "body", "prompt"), ("same", "text", "mask")):
            (self.folder / f"{file}-chat.jsonl").write_text("".join(
                json.dumps({text: a + b, mask: [[0, len(a)]]}) + "\n" for a, b in chat))
            (self.folder / f"{file}-plain.jsonl").write_text("".join(
                json.dumps({"content" if file == "own" else "text": f"some line {i * i % 991} of plain text", "prompt": "of no mask"}) + "\n"
                for i in range(600)))
        for folder in ("own-tokens", "same-tokens"):
            (self.folder / folder).mkdir()
            (self.folder / folder / "a.bin").write_bytes(tokens(3000, 300).tobytes())
        (self.folder / "own-tokens" / "notes.txt").write_text("some notes about the tokens\n")
        train = ["--model.vocab=320", "--train.max_steps=6", *STEPS, "--tokenizer.train_on=own-plain.txt"]
        (self.folder / "own-plain.txt").write_text("".join(a + b + "\n" for a, b in chat))

        def mixture(kind, chat="", plain="", tokens=""):
            return "".join(f'[[data.blend]]\nname = "{name}"\nsource = "{kind}-{source}"\nweight = 1\n{keys}' for name, source, keys in
                           (("chat", "chat.jsonl", chat), ("plain", "plain.jsonl", plain), ("tokens", "tokens", tokens)))

        self.blend(mixture("same"))
        same = self.train("same", *train, "--data.loss_mask_key=mask", f"--data.folder={self.folder}/made-same")
        own = {"chat": 'text_key = "body"\nloss_mask_key = "prompt"\n', "plain": 'text_key = "content"\n'}
        train.append(f"--data.folder={self.folder}/made")
        self.blend(mixture("own", **own))
        self.refused(65, "own-tokens holds tokens", *train)
        own["tokens"] = 'format = "nanogpt"\n'
        self.blend(mixture("own", **{**own, "plain": ""}))
        self.refused(65, 'it has no text "text" (data.text_key); its texts are: content, prompt', *train)
        self.blend(mixture("own", **own))
        run = self.train("own", *train)
        self.assertEqual(self.digest(run), self.digest(same))
        self.verify(run)
        made = json.loads((self.folder / "made/chat/manifest.json").read_text())
        self.assertGreater(made["masked_tokens"], 0)
        self.blend(mixture("own", **{**own, "plain": 'text_key = "prompt"\n'}))
        self.refused(78, '"plain" had text_key = "content" and has now "prompt"', *train, "--train.max_steps=7", run="own")
