"""Documents: attention within a document, targets that do not count (ENGINE-7), on every layout and after recoveries."""

import array
import json

from common import TINY, Case, kill, last_step, lines, tokens, trainer_pids

STEPS = ["--train.global_batch_size=12", "--train.validation_every_steps=5", "--checkpoint.disk_every_steps=4"]
END = 210  # the token that ends a document
MASK = ["--data.document_mask=true", f"--data.document_end={END}", "--data.document_boundary_loss=false"]


class Documents(Case):
    def setUp(self):
        super().setUp()
        # Documents of 1 to 60 tokens, so that samples of 24 tokens hold several, one, or a part of one.
        plain, out, length = tokens(20000, END), array.array("H"), 1
        while len(out) < 20000:
            out.extend(plain[len(out):len(out) + length])
            out.append(END)
            length = (length * 29 + 13) % 61
        self.data.write_bytes(out.tobytes())

    def refused(self, said, *overrides):
        self.command("train", self.config, f"--run={self.folder}/refused", "--train.max_steps=2", *overrides, code=78)
        self.assertEqual(len([l for l in self.stderr.splitlines() if l.startswith("simplescale: ")]), 1, self.stderr)
        self.assertIn(said, self.stderr)
        self.assertFalse((self.folder / "refused" / "logs").exists(), "nothing was started")

    def test_layouts_and_recoveries_give_the_same_bits_with_documents(self):
        flags = [*STEPS, *MASK, "--train.max_steps=12", "--train.schedule=constant"]
        one = self.train("one", *flags)
        expected, losses = self.digest(one), [m["loss"] for m in lines(one / "metrics.jsonl")]
        for groups, trainers, strategy in ((1, 3, "full_shard"), (3, 1, "no_shard")):
            run = self.train(f"{groups}x{trainers}", *flags, *self.layout(groups, trainers, strategy))
            self.assertEqual(self.digest(run), expected, (groups, trainers))
            self.assertEqual([m["loss"] for m in lines(run / "metrics.jsonl")], losses)
            self.verify(run)
        # A trainer is killed; then the run is stopped in the middle and resumed in another layout.
        run, process = self.start("killed", *flags, *self.layout(2, 2))
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        kill(trainer_pids(run)["n1.0"])
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), expected)
        self.train("parts", *flags, "--train.max_steps=5")
        parts = self.train("parts", *flags, *self.layout(2, 1))
        self.assertEqual(self.digest(parts), expected)

    def test_validation_and_evaluate_treat_documents_as_training_does(self):
        flags = [*STEPS, "--train.max_steps=5", "--data.validation_fraction=0.1"]
        plain, masked = self.train("plain", *flags), self.train("masked", *flags, *MASK)
        self.assertNotEqual(self.digest(plain), self.digest(masked))
        # All validation samples, so that the validation of the run and `evaluate` read the same ones.
        every = self.train("every", *flags, *MASK, "--train.validation_samples=10000")
        validated = [m["val_loss"] for m in lines(every / "metrics.jsonl") if "val_loss" in m][-1]
        evaluated = json.loads(self.command("evaluate", every, "--json"))
        self.assertAlmostEqual(evaluated["val_loss"], validated, places=5)
        samples = (20000 // 10 - 1) // TINY["model.block_size"]
        self.assertLess(evaluated["tokens"], samples * TINY["model.block_size"], "first tokens of documents do not count")
        self.assertGreater(evaluated["tokens"], samples * TINY["model.block_size"] * 0.9)
        # With the same weights the mask alone makes a difference, also for other tokens.
        mask_of = lambda run, old, new: (run / "config.toml").write_text((run / "config.toml").read_text().replace(old, new))
        other = json.loads(self.command("evaluate", every, f"--data={self.data}", "--json"))
        mask_of(every, "document_mask = true", "document_mask = false")
        self.assertNotEqual(json.loads(self.command("evaluate", every, "--json"))["val_loss"], evaluated["val_loss"])
        self.assertNotEqual(json.loads(self.command("evaluate", every, f"--data={self.data}", "--json"))["val_loss"], other["val_loss"])

    def test_a_model_learns_to_stop_whatever_ends_its_documents(self):
        words = ("the cat sat on mat where dogs ran to door while birds sang at night until morning came with light "
                 "and people walked along river looking for boats that never returned from beyond distant islands").split()
        text = self.folder / "short.jsonl"
        text.write_text("".join(json.dumps({"text": " ".join(words[(i * 7 + k * k) % len(words)] for k in range(4 + i % 3))}) + "\n"
                                for i in range(900)))
        for kind, mask in (("byte_bpe", "false"), ("byte_bpe", "true"), ("bpe", "false")):
            run = self.train(f"{kind}-{mask}", f"--data.source={text}", "--data.format=text", f"--data.folder={self.folder}/{kind}",
                             f"--tokenizer.kind={kind}", "--model.vocab=300", "--data.validation_fraction=0.05",
                             "--data.document_boundary_loss=false", f"--data.document_mask={mask}", "--train.global_batch_size=8",
                             "--train.max_steps=150")
            said = self.command("generate", run, "--prompt", "the cat", "--max-tokens", "300", "--temperature", "0")
            self.assertLess(len(said.split()), 20, (kind, mask, said))
            # Of each document one target does not count: the token behind its end.
            counted = json.loads(self.command("evaluate", run, "--json"))["tokens"]
            (run / "config.toml").write_text((run / "config.toml").read_text().replace("document_boundary_loss = false",
                                                                                      "document_boundary_loss = true"))
            self.assertGreater(json.loads(self.command("evaluate", run, "--json"))["tokens"], counted)

    def test_whole_documents_give_the_same_bits_on_every_layout_after_recoveries_and_in_parts(self):
        cache = ["--data.pack=best_fit", f"--data.document_end={END}", f"--data.cache_folder={self.folder}/cache"]
        flags = [*STEPS, *cache, "--train.max_steps=12", "--train.schedule=constant"]
        concat = self.digest(self.train("concat", *STEPS, "--train.max_steps=12", "--train.schedule=constant"))
        one = self.train("one", *flags)
        self.assertRegex(self.stderr, r"data.pack:\n  train: \d+ tokens in \d+ samples, padding \d+.\d\d %\n  validation: ")
        expected, metrics = self.digest(one), lines(one / "metrics.jsonl")
        self.assertNotEqual(expected, concat)
        shares = {m["padding"] for m in metrics}
        self.assertEqual(len(shares), 1)
        self.assertTrue(0 < shares.pop() < 0.1)
        shown = self.command("config", "show", self.config, *cache, "--train.max_steps=12")
        self.assertRegex(shown, r"packing\n  train: \d+ tokens in \d+ samples, padding \d+.\d\d %")
        for groups, trainers, strategy in ((1, 3, "full_shard"), (3, 1, "no_shard")):
            run = self.train(f"{groups}x{trainers}", *flags, *self.layout(groups, trainers, strategy))
            self.assertEqual(self.digest(run), expected, (groups, trainers))
            self.assertEqual([m["loss"] for m in lines(run / "metrics.jsonl")], [m["loss"] for m in metrics])
            self.assertIn("each sample exactly once", self.verify(run))
        run, process = self.start("killed", *flags, *self.layout(2, 2))
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        kill(trainer_pids(run)["n1.0"])
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), expected)
        # Stopped, and resumed in another layout on a host that has to find the documents again.
        self.train("parts", *flags, "--train.max_steps=5")
        packs = sorted(p.name for p in (self.folder / "cache").rglob("*.pack"))
        self.assertEqual(len(packs), 2)
        for pack in (self.folder / "cache").rglob("*.pack"):
            pack.unlink()
        parts = self.train("parts", *flags, *self.layout(2, 1))
        self.assertEqual(self.digest(parts), expected)
        self.assertEqual(sorted(p.name for p in (self.folder / "cache").rglob("*.pack")), packs)
        # All validation samples: the run's loss and that of `evaluate`.
        every = self.train("every", *flags, "--train.validation_samples=10000")
        validated = [m["val_loss"] for m in lines(every / "metrics.jsonl") if "val_loss" in m][-1]
        self.assertAlmostEqual(json.loads(self.command("evaluate", every, "--json"))["val_loss"], validated, places=5)
        self.command("train", self.config, f"--run={one}", *STEPS, "--train.max_steps=14", *cache[1:], code=78)
        self.assertIn("data.pack was \"best_fit\" and is now \"concat\"", self.stderr)

    def test_what_cannot_work_is_refused_in_one_line(self):
        self.refused("data.pack: nothing says where documents begin", "--data.pack=best_fit")
        self.refused("nothing says where documents begin", "--data.document_mask=true")
        self.refused("data.document_begin = 211 is beyond the vocabulary of 211", "--data.document_mask=true", "--data.document_begin=211")
        run = self.train("run", *STEPS, *MASK, "--train.max_steps=2")
        self.command("train", self.config, f"--run={run}", *STEPS, "--train.max_steps=4", code=78)
        self.assertIn("data.document_mask", self.stderr)
