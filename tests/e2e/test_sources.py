"""Text and tokens as users have them: JSON lines, compressed files, and tokens that other programs made."""

import gzip
import json
import struct
import unittest

from common import TINY, Case, tokens

STEPS = ("--train.global_batch_size=2", "--train.max_steps=6", "--checkpoint.disk_every_steps=3")
WORDS = "the river carries small boats past quiet villages while old men repair nets and sing about summer storms".split()


class Sources(Case):
    def trained(self, run, *overrides):
        return self.digest(self.train(run, *STEPS, *overrides))

    def test_the_same_tokens_in_every_format_give_the_same_bits(self):
        ids = tokens(20000, TINY["model.vocab"])
        raw = ids.tobytes()
        expected = self.trained("nanogpt")
        megatron = self.folder / "corpus_text_document"
        lengths = [len(ids) - 12000, 0, 12000]
        begins = [0, lengths[0], lengths[0]]
        megatron.with_suffix(".bin").write_bytes(raw)
        megatron.with_suffix(".idx").write_bytes(
            b"MMIDIDX\0\0" + struct.pack("<QBQQ3i3q4q", 1, 8, 3, 4, *lengths, *(2 * b for b in begins), 0, 1, 2, 3))
        self.assertEqual(self.trained("megatron", f'--data.source="{megatron}"'), expected)
        shards = self.folder / "shards"
        shards.mkdir()
        for i, begin in enumerate(range(0, 20000, 7000)):
            part = raw[2 * begin:2 * (begin + 7000)]
            (shards / f"train_{i}.bin").write_bytes(b"LITPKDS" + struct.pack("<QBQ", 1, 8, len(part) // 2) + part)
        run = f'--data.source="{shards}"'
        self.assertEqual(self.trained("litgpt", run, "--cluster.nodes=2"), expected)
        # Another shard would shift the samples.
        (shards / "train_9.bin").write_bytes((shards / "train_0.bin").read_bytes())
        self.command("train", self.config, f"--run={self.folder}/litgpt", "--train.max_steps=8", run, "--cluster.nodes=2", code=65)
        self.assertIn("train_9.bin was added since this run began", self.stderr)

    def test_compressed_json_lines_are_trained_on(self):
        folder = self.folder / "texts"
        folder.mkdir()
        lines = [json.dumps({"id": i, "body": " ".join(WORDS[(i * k) % 17] for k in range(3, 40))}) for i in range(600)]
        lines[100] = '{"id": 100, "body": "cut'
        with gzip.open(folder / "a.jsonl.gz", "wt") as file:
            file.write("\n".join(lines))
        text = (f'--data.source="{folder}"', '--data.text_key="body"', f'--data.folder="{self.folder}/prepared"', "--model.vocab=320")
        self.command("prepare", self.config, *text, code=65)
        self.assertIn("a.jsonl.gz: line 101: it is no JSON", self.stderr)
        run = self.train("run", *STEPS, *text, "--data.skip_bad=1")
        self.assertIn("each sample exactly once", self.command("verify", run))
        manifest = json.loads((self.folder / "prepared/manifest.json").read_text())
        self.assertEqual((manifest["documents"], manifest["bad_lines"]), (599, 1))


if __name__ == "__main__":
    unittest.main()
