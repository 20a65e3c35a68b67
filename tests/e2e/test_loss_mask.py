"""Loss masks: parts of a text, or ranges of tokens, that do not count in the loss (ENGINE-7), on every layout and after recoveries."""

import array
import json
import shutil
import struct

from common import TINY, Case, events, kill, last_step, lines, tokens, trainer_pids

STEPS = ["--train.global_batch_size=12", "--train.validation_every_steps=4", "--checkpoint.disk_every_steps=4"]
END = 210


def write_mask(path, count, ranges):
    """As docs/formats.md has it."""
    path.write_bytes(b"SSLMASK1" + struct.pack("<QQ", count, len(ranges)) + b"".join(struct.pack("<QQ", *r) for r in ranges))


class LossMask(Case):
    def test_a_mask_beside_tokens_counts_as_the_same_targets_left_out_by_documents(self):
        out, length = array.array("H"), 1
        plain = tokens(20000, END)
        while len(out) < 20000:
            out.extend(plain[len(out):len(out) + length])
            out.append(END)
            length = (length * 29 + 13) % 61
        self.data.write_bytes(out.tobytes())
        flags = [*STEPS, "--train.max_steps=8", "--data.validation_fraction=0.1"]
        documents = self.train("documents", *flags, f"--data.document_end={END}", "--data.document_boundary_loss=false")
        begins = [i + 1 for i, token in enumerate(out) if token == END and i + 1 < len(out)]
        ranges = []
        for begin in begins:
            if ranges and ranges[-1][1] == begin:
                ranges[-1][1] = begin + 1
            else:
                ranges.append([begin, begin + 1])
        mask = self.folder / "tokens.mask"
        write_mask(mask, len(out), ranges)
        masked = self.train("masked", *flags)
        self.assertEqual(self.digest(masked), self.digest(documents))
        for run in (masked, documents):
            self.verify(run)
        wanted = [(m["loss"], m.get("val_loss")) for m in lines(documents / "metrics.jsonl")]
        self.assertEqual([(m["loss"], m.get("val_loss")) for m in lines(masked / "metrics.jsonl")], wanted)
        evaluated = [json.loads(self.command("evaluate", run, "--json")) for run in (masked, documents)]
        self.assertEqual(evaluated[0]["val_loss"], evaluated[1]["val_loss"])
        self.assertEqual(evaluated[0]["tokens"], evaluated[1]["tokens"])
        # The mask belongs to the data of the run.
        write_mask(mask, len(out), ranges[1:])
        self.command("train", self.config, f"--run={masked}", *flags, "--train.max_steps=9", code=65)
        self.assertIn("tokens.mask has changed since this run began", self.stderr)
        mask.unlink()
        self.command("train", self.config, f"--run={masked}", *flags, "--train.max_steps=9", code=65)
        self.assertIn("tokens.mask is missing since this run began", self.stderr)
        # A damaged one is named before anything starts.
        mask.write_bytes(b"SSLMASK1" + struct.pack("<6Q", len(out), 2, 5, 9, 8, 12))
        self.command("train", self.config, f"--run={self.folder}/refused", *flags, code=65)
        self.assertIn(f"{mask}: byte 40: range 1, [8, 12), is wrong", self.stderr)
        self.assertFalse((self.folder / "refused" / "logs").exists(), "nothing was started")

    def test_prompts_of_a_blend_do_not_count_on_any_layout_and_after_a_kill_and_a_stop(self):
        with (self.folder / "chat.jsonl").open("w") as file:
            for i in range(900):
                prompt, response = f"question {i * i % 97} about \u00e9t\u00e9 ", f"the answer is {i * 7 % 89}"
                file.write(json.dumps({"text": prompt + response, "prompt": [[0, len(prompt)]]}) + "\n")
        (self.folder / "plain.txt").write_text("".join(f"some line {i * i % 991} of plain text\n<|endoftext|>\n" for i in range(900)))
        self.write_config({**TINY, "model.vocab": 320, "data.source": '""', "data.validation_fraction": 0.1,
                           "data.loss_mask_key": '"prompt"'})
        self.config.write_text(self.config.read_text() + "".join(
            f'[[data.blend]]\nname = "{name}"\nsource = "{source}"\nweight = {weight}\nfolder = "{self.folder}/{name}"\n'
            for name, source, weight in (("chat", "chat.jsonl", 0.7), ("plain", "plain.txt", 0.3))))
        flags = [*STEPS, "--train.max_steps=12", "--train.schedule=constant", "--data.document_mask=true",
                 "--model.experts=4", "--train.router_balance_loss=1e-2"]
        one = self.train("one", *flags)
        expected, losses = self.digest(one), [(m["loss"], m.get("val_losses")) for m in lines(one / "metrics.jsonl")]
        manifests = [json.loads((self.folder / name / "manifest.json").read_text()) for name in ("chat", "plain")]
        self.assertGreater(manifests[0]["masked_tokens"], 0.3 * manifests[0]["train_tokens"])
        self.assertIn("validation_mask", manifests[0]["files"])
        self.assertNotIn("train_mask", manifests[1]["files"])
        for groups, trainers, strategy in ((1, 3, "full_shard"), (3, 1, "no_shard")):
            run = self.train(f"{groups}x{trainers}", *flags, *self.layout(groups, trainers, strategy))
            self.assertEqual(self.digest(run), expected, (groups, trainers))
            self.assertEqual([(m["loss"], m.get("val_losses")) for m in lines(run / "metrics.jsonl")], losses)
            self.verify(run)
        run, process = self.start("killed", *flags, *self.layout(2, 2))
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        kill(trainer_pids(run)["n1.0"])
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), expected)
        self.train("parts", *flags, "--train.max_steps=5")
        parts = self.train("parts", *flags, *self.layout(2, 1))
        self.assertEqual(self.digest(parts), expected)
        # Other weights than with all tokens, and than with another key.
        self.assertEqual(events(one, "no_targets"), [])
        self.command("train", self.config, f"--run={one}", *flags, '--data.loss_mask_key=""', code=78)
        self.assertIn("data.loss_mask_key", self.stderr)

    def test_a_batch_without_targets_changes_nothing_but_says_so(self):
        write_mask(self.folder / "tokens.mask", 20000, [(0, 20000)])
        run = self.folder / "run"
        said = self.command("train", self.config, f"--run={run}", *STEPS, "--train.max_steps=3", "--train.weight_decay=0",
                            "--metrics.http_port=0", *self.layout(2, 2))
        rows = lines(run / "metrics.jsonl")
        self.assertEqual([(m["loss"], m["grad_norm"]) for m in rows], [(None, 0), (None, 0), (None, 0)])
        self.assertIsNone(rows[-1]["val_loss"])
        told = [(e["subject"], e["reason"].split(":")[0]) for e in events(run, "no_targets")]
        self.assertEqual(sorted(told), [("", "step 1"), ("", "step 2"), ("", "step 3"), ("validation", "step 0"), ("validation", "step 3")])
        # The terminal warns of each once, and shows no figure.
        self.assertEqual(self.stderr.count("warning: step 1: no target of the global batch counts in the loss"), 1, self.stderr)
        self.assertEqual(self.stderr.count("warning: step 0: no target of the validation samples counts in the loss"), 1, self.stderr)
        self.assertEqual(self.stderr.count("warning: step"), 2, self.stderr)
        self.assertIn("step 0: validation loss none\n", said)
        self.assertIn("step 3/3: loss none, learning rate", said)
        self.assertNotIn("0.0000", said)
        [shown] = json.loads(self.command("runs", run, "--json"))
        self.assertEqual((shown["loss"], shown["val_loss"]), (None, None))
        self.command("plot", run, "-o", self.folder / "plot.svg")
        self.command("report", run, "-o", self.folder / "report.html")
        self.assertIn("  without targets  3 of 3 steps\n", said)
        shown = json.loads(self.command("status", run, "--json"))
        self.assertEqual((shown["loss"], shown["val_loss"]), (None, None))
        evaluated = json.loads(self.command("evaluate", run, "--json"))
        self.assertEqual(evaluated, {"perplexity": None, "tokens": 0, "val_loss": None})
        self.assertIn("warning: no target counts in the loss", self.stderr)
        self.assertIn("validation loss none, perplexity none, over 0 tokens", self.command("evaluate", run))
        (self.folder / "tokens.mask").unlink()
        begin = self.train("begin", *STEPS, "--train.max_steps=1", "--train.learning_rate=1e-30")
        weights = lambda of: [l for l in self.command("digest", of).splitlines() if l.split()[0].endswith("weight")]
        self.assertEqual(weights(run), weights(begin), "no weight has moved")
        self.verify(run)

    def test_no_checkpoint_is_the_best_by_a_validation_without_targets(self):
        write_mask(self.folder / "tokens.mask", 20000, [(18000, 20000)])
        run = self.train("run", *STEPS, "--train.max_steps=8", "--data.validation_fraction=0.1", "--checkpoint.keep_best=1",
                         "--checkpoint.keep=1")
        self.assertEqual([m["val_loss"] for m in lines(run / "metrics.jsonl") if "val_loss" in m], [None, None])
        self.assertTrue(all(m["loss"] > 0 for m in lines(run / "metrics.jsonl")))
        self.assertEqual(sorted(p.name for p in (run / "checkpoints").glob("[bs]*")), ["step-00000008"])
        self.verify(run)
        # Of a blend only the source that counts has a validation loss, which is that of all.
        (self.folder / "tokens.mask").unlink()
        other = self.folder / "other.bin"
        other.write_bytes(tokens(20000, 97).tobytes())
        write_mask(self.folder / "other.mask", 20000, [(18000, 20000)])
        self.write_config({**TINY, "data.source": '""', "data.validation_fraction": 0.1})
        self.config.write_text(self.config.read_text() + "".join(
            f'[[data.blend]]\nname = "{name}"\nsource = "{source}"\nweight = 0.5\n' for name, source in (("web", self.data), ("chat", other))))
        run = self.folder / "blend"
        said = self.command("train", self.config, f"--run={run}", *STEPS, "--train.max_steps=4", *self.layout(2, 1))
        last = lines(run / "metrics.jsonl")[-1]
        self.assertEqual(last["val_losses"], {"web": last["val_loss"], "chat": None})
        self.assertRegex(said, r"step 4: validation loss (\d+\.\d{4}): chat none, web \1\n")
        self.assertIn("warning: step 0: no target of the validation samples of chat counts", self.stderr)
        evaluated = json.loads(self.command("evaluate", run, "--json"))
        self.assertIsNone(evaluated["val_losses"]["chat"])
        self.assertEqual(evaluated["val_losses"]["web"], evaluated["val_loss"])

    def test_too_little_validation_is_told(self):
        run = self.folder / "run"
        self.command("train", self.config, f"--run={run}", *STEPS, "--train.max_steps=2", "--data.validation_fraction=0.0005")
        self.assertIn("warning: no validation loss: the 10 validation tokens", self.stderr)
        self.assertNotIn("val_loss", lines(run / "metrics.jsonl")[-1])
        self.command("train", self.config, f"--run={self.folder}/none", *STEPS, "--train.max_steps=1", "--data.validation_fraction=0")
        self.assertNotIn("no validation loss", self.stderr)  # it was not asked for

    def test_bad_ranges_are_named_with_file_and_line_or_left_out(self):
        text = "the quick brown fox jumps over a lazy dog while every wizard mixes purple juice and black onyx"
        rows = [{"text": f"row {i * i} of {text}", "mask": [[0, 4]]} for i in range(200)]
        rows[6]["mask"] = [[3, 2]]
        rows[90]["mask"] = [[0, 9999]]
        (self.folder / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        prepare = ["prepare", self.config, f'--data.source="{self.folder}/bad.jsonl"', "--model.vocab=300",
                   f'--data.folder="{self.folder}/prepared"', "--data.validation_fraction=0"]
        key = '--data.loss_mask_key="mask"'
        self.command(*prepare, key, code=65)
        self.assertIn('bad.jsonl: line 7: "mask" (data.loss_mask_key): range 0 is [3,2]; it must be [begin, end]', self.stderr)
        self.command(*prepare, key, "--data.skip_bad=1", code=65)
        self.assertIn('line 91: "mask" (data.loss_mask_key): [0, 9999] is beyond the text, which has', self.stderr)
        said = self.command(*prepare, key, "--data.skip_bad=2")
        self.assertRegex(said + self.stderr, r"\d+ of them do not count in the loss; left out 2 bad lines")
        manifest = json.loads((self.folder / "prepared/manifest.json").read_text())
        self.assertEqual(manifest["documents"], 198)
        self.assertEqual(set(manifest["files"]["train_mask"]), {"name", "bytes", "changed_ns", "xxh3_128"})
        self.command(*prepare, code=78)
        self.assertIn("prepared was prepared from another text", self.stderr)
        shutil.rmtree(self.folder / "prepared")
        self.command(*prepare)
        self.assertNotIn("masked_tokens", json.loads((self.folder / "prepared/manifest.json").read_text()))
        self.assertFalse((self.folder / "prepared/train.mask").exists())
