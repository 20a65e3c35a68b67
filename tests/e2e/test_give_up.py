"""A run that gives up saves first what only memory holds (JOB-1), names the samples of a value that is not finite, and goes on
without them. The value comes from the data: one token alone has a channel that overflows, and one sample has that token."""

import array
import json
import re
import shutil
import struct

from common import TINY, Case, events, last_step, leftovers, lines

BAD = TINY["model.vocab"] - 1  # no other sample has this token
SAMPLE = 83  # in step 11 of 8 samples
HUGE = 3e38  # near the largest number of fp32


class GiveUp(Case):
    def setUp(self):
        super().setUp()
        tokens = array.array("H", self.data.read_bytes())
        for i, token in enumerate(tokens):
            tokens[i] = BAD - 1 if token == BAD else token
        tokens[SAMPLE * TINY["model.block_size"] + 5] = BAD
        self.data.write_bytes(tokens.tobytes())
        self.keys = ["--train.global_batch_size=8", "--data.shuffle=false", "--train.validation_samples=0", "--train.max_steps=20",
                     "--supervision.give_up_after_cycles=1", *self.layout(2, 1), "--from", self.poisoned()]

    def poisoned(self):
        """A Hugging Face folder in which channel 0 is zero but for BAD, whose first norm makes it infinite. Nothing else reads or
        writes the channel, so no gradient changes that."""
        parent = self.train("parent", "--train.max_steps=1", "--train.validation_samples=0")
        model = self.folder / "poisoned"
        self.command("export", parent, model)
        path = model / "model.safetensors"
        content = bytearray(path.read_bytes())
        begin = 8 + struct.unpack("<Q", content[:8])[0]
        for name, tensor in json.loads(content[8:begin]).items():
            if name == "__metadata__":
                continue
            first, last = (begin + offset for offset in tensor["data_offsets"])
            values, columns = memoryview(content)[first:last].cast("f"), tensor["shape"][-1]
            if "norm.weight" in name or "layernorm.weight" in name:
                values[0] = HUGE if name == "model.layers.0.input_layernorm.weight" else 0
            elif "o_proj" in name or "down_proj" in name:  # what is written to channel 0
                for i in range(columns):
                    values[i] = 0
            elif "embed_tokens" in name or "layers.0.self_attn" in name:  # what is read from it
                for i in range(0, len(values), columns):
                    values[i] = 0
                if "embed_tokens" in name:
                    values[BAD * columns] = 1
        path.write_bytes(content)
        return model

    def test_it_saves_names_the_samples_and_goes_on_without_them_in_any_layout(self):
        run = self.train("run", *self.keys, code=3)
        failed = lines(run / "events.jsonl")[-1]
        self.assertEqual(failed["kind"], "failed")
        self.assertRegex(failed["reason"], r"The run gave up: 2 failures .* The last: Trainer n0\.0 computed a value that is not finite"
                                           r" \(step 11: .* on samples 80-83\); step 10 was saved; if these samples")
        self.assertIn(failed["reason"], self.stderr)
        found = [e["reason"] for e in events(run, "non_finite")][0]
        first = 80 * 2 * TINY["model.block_size"]
        self.assertIn(f"(sample 80: {self.data}, byte {first}; sample 81: ", found)
        self.assertEqual((run / "checkpoints/latest").readlink().name, "step-00000010")
        self.assertIn("metrics.jsonl: 10 steps", self.verify(run))
        self.assertFalse(leftovers(run))
        self.command("resume", run, code=3)  # nothing is lost, and nothing is left to save
        self.assertIn("--skip-samples=80-83", self.stderr)
        self.assertEqual(last_step(run), 10)
        self.command("resume", run, "--skip-samples=79", code=78)
        self.assertIn("has trained the samples up to 79 already", self.stderr)

        other = self.folder / "other"
        shutil.copytree(run, other, symlinks=True)
        skip = re.search(r"--skip-samples=\S+", failed["reason"])[0]
        self.command("resume", run, skip)
        want = self.digest(run)
        self.assertIn("each sample exactly once; left out: 80-83", self.verify(run))
        self.assertEqual([e["subject"] for e in events(run, "changed")], ["signature", "data.skip_samples"])
        trained = {s for line in lines(run / "ledger.jsonl") for first, count in line["samples"] for s in range(first, first + count)}
        self.assertEqual(trained, set(range(20 * 8 + 4)) - set(range(80, 84)))

        # The same bits in another layout, over a recovery, and when the samples are left out from the start. A later start
        # without the option does not take the samples back.
        self.command("resume", other, skip, *self.layout(1, 2, "full_shard"),
                     '--inject.faults=[{step=13,kind="kill_trainer",target="n0.1"}]')
        self.assertEqual(self.digest(other), want)
        self.assertTrue(events(other, "trainer_down"))
        self.command("resume", other, "--train.max_steps=22", "--inject.faults=[]", "--data.skip_samples=")
        self.assertIn("left out: 80-83", self.verify(other))
        straight = self.train("straight", *self.keys, "--skip-samples", "80-83")
        self.assertEqual(self.digest(straight), want)
