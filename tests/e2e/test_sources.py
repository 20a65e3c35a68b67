"""Text and tokens as users have them: JSON lines, compressed files, and tokens that other programs made."""

import array
import gzip
import json
import resource
import struct
import subprocess
import unittest

from common import HAS_PYARROW, PYTHON, TINY, Case, tokens

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

    def test_token_files_take_the_tokenizer_that_is_named_or_of_the_weights(self):
        text = self.folder / "text.txt"
        text.write_text("\n".join(" ".join(WORDS[(i * k) % 17] for k in range(3, 40)) for i in range(400)))
        made = {kind: self.folder / kind for kind in ("a", "b")}
        for kind, vocab in (("a", 300), ("b", 310)):
            self.command("prepare", self.config, f'--data.source="{text}"', "--tokenizer.kind=byte_bpe", f"--model.vocab={vocab}",
                         f'--data.folder="{made[kind]}"')
        tokenizer = (made["a"] / "tokenizer.json").read_bytes()
        flags = (*STEPS, "--model.vocab=320")
        named = (*flags, f'--tokenizer.path="{made["a"]}"')
        without = self.train("without", *flags)
        self.command("generate", without, "--prompt=the river", code=65)
        run = self.train("run", *named)
        self.assertEqual(self.digest(run), self.digest(without))
        self.command("generate", run, "--prompt=the river", "--max-tokens=3")
        self.command("export", run, self.folder / "exported")
        self.assertEqual((self.folder / "exported/tokenizer.json").read_bytes(), tokenizer)
        (self.folder / "tasks.jsonl").write_text('{"task": "t", "text": "the river carries small boats"}\n')
        self.train("scored", *named, "--train.tasks=tasks.jsonl")
        # So does a run that begins with these weights, and it goes on with what it began with.
        for name, parent in (("of-run", run), ("of-export", self.folder / "exported"), ("of-none", without)):
            child = self.train(name, *flags, "--from", parent)
            kept = child / "checkpoints/latest/tokenizer.json"
            self.assertEqual(kept.read_bytes() if kept.exists() else None, None if parent == without else tokenizer)
            self.command("resume", child, "--train.max_steps=7")
        for code, overrides, says in (
                (65, ["--model.vocab=299"], "has 300 tokens, more than the vocabulary of 299"),
                (78, [f'--data.source="{made["b"]}"'], f"{made['b']} was prepared with another tokenizer"),
                (78, [f'--data.source="{text}"', f'--data.folder="{made["b"]}"'], f"{made['b']} was prepared with another tokenizer")):
            self.train("refused", *named, *overrides, code=code)
            self.assertIn(says, self.stderr.splitlines()[-1])
        self.assertIn('"vocab": 310', (made["b"] / "manifest.json").read_text())
        (made["a"] / "tokenizer.json").write_bytes((made["b"] / "tokenizer.json").read_bytes())
        self.train("run", *named, "--train.max_steps=7", code=65)
        self.assertIn("(tokenizer.path) has changed since this run began", self.stderr)

    def test_tokens_are_told_from_text_beside_them(self):
        folder = self.folder / "tokens"
        folder.mkdir()
        (folder / "shard_000.bin").write_bytes(self.data.read_bytes())
        expected = self.trained("alone", f'--data.source="{folder}"')
        (folder / "README.txt").write_text("tokens of a text\n")
        self.assertEqual(self.trained("read-me", f'--data.source="{folder}"'), expected)
        (folder / "corpus.jsonl").write_text('{"text": "a text"}\n')
        self.train("both", *STEPS, f'--data.source="{folder}"', code=65)
        self.assertIn("set data.format", self.stderr)
        self.assertEqual(self.trained("named", f'--data.source="{folder}"', "--data.format=nanogpt"), expected)

    def test_nothing_is_read_as_u16_that_contradicts(self):
        def write(name, code, ids):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(array.array(code, ids).tobytes())
            return path
        ids = list(tokens(20000, TINY["model.vocab"]))
        told = self.train("u16", *STEPS)
        self.assertIn(f"warning: {self.data} has no header: its ids are read as u16", self.stderr)
        expected = self.digest(told)
        u32, i64 = write("u32.bin", "I", ids), write("i64.bin", "q", ids)
        large = write("large.bin", "I", [i * 7919 % 90_000 for i in range(8000)])
        for path, options, says in ((u32, [], "they have 4; set data.token_bytes = 4"), (i64, [], "they have 8; convert them"),
                                    (large, ["--model.vocab=90112"], "the vocabulary has 90112 tokens: set data.token_bytes = 4"),
                                    (self.data, ["--data.token_bytes=4"], "is beyond the vocabulary")):
            self.train("refused", *STEPS, f'--data.source="{path}"', *options, code=65)
            self.assertIn(f"{path}", self.stderr.splitlines()[-1])
            self.assertIn(says, self.stderr.splitlines()[-1])
        self.train("refused", *STEPS, "--data.token_bytes=3", code=78)
        for name, options in (("said", ["--data.token_bytes=2"]), ("u32", [f'--data.source="{u32}"', "--data.token_bytes=4"])):
            said = self.train(name, *STEPS, *options)
            self.assertNotIn("no header", self.stderr)
            self.assertEqual(self.digest(said), expected)
        # What was taken for granted may be said later.
        self.command("train", self.config, f"--run={self.folder}/u16", *STEPS, "--train.max_steps=7", "--data.token_bytes=2")
        blend = '--data.blend=[{name = "a", source = "%s", weight = 1}, {name = "b", source = "%s", weight = 1, token_bytes = 4}]'
        self.train("blend", *STEPS, "--data.source=", blend % (self.data, u32))
        self.command("evaluate", self.folder / "u32", f"--data={u32}", "--samples=2")
        text = self.folder / "a.txt"
        text.write_text("words " * 900)
        self.command("prepare", self.config, f'--data.source="{text}"', "--data.token_bytes=2", "--model.vocab=300", code=78)
        self.assertIn("data.token_bytes is for tokens", self.stderr)

    def test_no_file_is_left_out_without_a_word(self):
        text, far, dense = self.folder / "text", self.folder / "far", self.folder / "tokens"
        for folder in (text, far, dense, dense / "below"):
            folder.mkdir()
        row = json.dumps({"text": " ".join(WORDS[(i * 5) % 17] for i in range(900))}) + "\n"
        (text / "a.jsonl").write_text(row)
        (far / "b.jsonl").write_text(row)
        (text / "part2").symlink_to("../far")
        for name in ("c.jsonl.zstd", "part-00000"):
            (text / name).write_text(row)
        options = [f'--data.source="{text}"', f'--data.folder="{self.folder}/made"', "--model.vocab=300"]
        self.command("prepare", self.config, *options)
        self.assertEqual(self.stderr.count(f"warning: {text}: 2 files are not read: c.jsonl.zstd, part-00000 ("), 1, self.stderr)
        self.assertEqual(json.loads((self.folder / "made/manifest.json").read_text())["documents"], 2)
        (text / "d.jsonl").symlink_to("nowhere")
        refused = [*options[:1], *options[2:], f'--data.folder="{self.folder}/refused"']
        self.command("prepare", self.config, *refused, code=65)
        self.assertIn(f"{text}/d.jsonl: it is a link to nowhere", self.stderr)
        (text / "d.jsonl").unlink()
        (text / "d.jsonl.gz").write_bytes(b"")
        self.command("prepare", self.config, *refused, "--data.skip_bad=9", code=65)
        self.assertIn(f"{text}/d.jsonl.gz: it is compressed by its name, and has 0 bytes", self.stderr)
        for path in (dense / "a.bin", dense / "below/b.bin"):
            path.write_bytes(self.data.read_bytes())
        self.train("run-tokens", *STEPS, f'--data.source="{dense}"', "--data.token_bytes=2")
        self.assertIn(f"warning: {dense}: 1 file is not read: below/", self.stderr)
        (dense / "lost.idx").write_bytes(b"MMIDIDX")
        self.train("orphan", *STEPS, f'--data.source="{dense}"', code=65)
        self.assertIn("lost.idx: the tokens of this index are missing", self.stderr)

    def test_more_token_files_than_open_files(self):
        shards = self.folder / "many"
        shards.mkdir()
        ids, each = tokens(20000, TINY["model.vocab"]), 50
        for i in range(0, len(ids), each):
            (shards / f"s_{i:06d}.bin").write_bytes(ids[i:i + each].tobytes())
        expected = self.trained("one")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.assertEqual(self.trained("run-many", f'--data.source="{shards}"', "--data.token_bytes=2"), expected)

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

    @unittest.skipUnless(HAS_PYARROW, "pyarrow is not installed")
    def test_parquet_gives_the_tokens_of_the_same_json_lines(self):
        texts = [" ".join(WORDS[(i * k) % 17] for k in range(3, 40)) + ("\n\u00e9t\u00e9 \U0001f600" if i % 7 == 0 else "") for i in range(3000)]
        lines, rows = self.folder / "lines", self.folder / "rows"
        for folder in (lines, rows):
            folder.mkdir()
        (lines / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
        script = """
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
texts = [json.loads(line)["body"] for line in open(sys.argv[1])]
pq.write_table(pa.table({"id": range(2000), "body": texts[:2000]}), sys.argv[2] + "/a.parquet", row_group_size=700, compression="zstd")
large = pa.table({"body": pa.array(texts[2000:], pa.large_string()), "tags": [["a", "b"]] * 1000})
pq.write_table(large.slice(0, 600), sys.argv[2] + "/b.parquet", use_dictionary=False)
for name, rows, make in (("c", (2600, 2700), lambda t: pa.array(t).dictionary_encode()), ("d", (2700, 2800), lambda t: pa.array(t, pa.string_view())),
                         ("e", (2800, 3000), lambda t: pa.array([x.encode() for x in t], pa.binary()))):
    pq.write_table(pa.table({"body": make(texts[slice(*rows)])}), sys.argv[2] + f"/{name}.parquet", data_page_version="2.0")
pq.write_table(pa.table({"body": ["one", None, "three"]}), sys.argv[3])
pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["body", "body"]), sys.argv[3] + ".two.parquet")
pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array([[[0, 1]]]), pa.array([[[0, 1]]])], names=["body", "mask", "mask"]), sys.argv[3] + ".masks.parquet")
pq.write_table(pa.table({"body": ["one", "two"]}), sys.argv[5] + "/a.parquet")
pq.write_table(pa.table({"body": [None, None]}), sys.argv[5] + "/b.parquet")
pq.write_table(pa.table({"body": pa.array([None, None], pa.float64())}), sys.argv[5] + "/c.parquet")
bomb = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array(["a" * (100 << 20)]))
pq.write_table(pa.table({"body": bomb}), sys.argv[4], compression="zstd", dictionary_pagesize_limit=1 << 30, write_statistics=False,
               store_schema=False)
"""
        bad, bomb, nothing = self.folder / "bad.parquet", self.folder / "bomb.parquet", self.folder / "nothing"
        nothing.mkdir()
        subprocess.run([PYTHON, "-c", script, lines / "a.jsonl", rows, bad, bomb, nothing], check=True)
        self.assertLess(bomb.stat().st_size, 10_000)
        hashes = []
        for source in (lines, rows):
            self.command("prepare", self.config, f'--data.source="{source}"', '--data.text_key="body"', "--model.vocab=320",
                         f'--data.folder="{self.folder}/of-{source.name}"', f'--tokenizer.train_on="{lines}"', "--data.validation_fraction=0")
            manifest = json.loads((self.folder / f"of-{source.name}/manifest.json").read_text())
            self.assertEqual(manifest["documents"], 3000)
            hashes.append(manifest["files"]["train"]["xxh3_128"])
        self.assertEqual(hashes[0], hashes[1])

        def refused(path, *words, key="body", mask=""):
            self.command("prepare", self.config, f'--data.source="{path}"', f'--data.text_key="{key}"', "--model.vocab=320",
                         f'--data.loss_mask_key="{mask}"', f'--data.folder="{self.folder}/refused"', f'--tokenizer.path="{self.folder}/of-lines/tokenizer.json"', code=65)
            for word in words:
                self.assertIn(word, self.stderr)
        refused(bad, "bad.parquet: row 2: it has no text")
        # A shard without any text has no type of texts.
        refused(nothing / "b.parquet", "b.parquet: row 1: it has no text")
        refused(nothing / "c.parquet", "c.parquet: row 1: it has no text")
        self.command("prepare", self.config, f'--data.source="{nothing}"', '--data.text_key="body"', "--model.vocab=320", "--data.skip_bad=4",
                     f'--data.folder="{self.folder}/nothing-made"', f'--tokenizer.path="{self.folder}/of-lines/tokenizer.json"')
        manifest = json.loads((self.folder / "nothing-made/manifest.json").read_text())
        self.assertEqual((manifest["documents"], manifest["bad_lines"]), (2, 4))
        refused(f"{bad}.two.parquet", 'two columns "body" (data.text_key)')
        refused(f"{bad}.masks.parquet", 'two columns "mask" (data.loss_mask_key)', mask="mask")
        refused(rows / "a.parquet", 'it has no column of texts "text"', "it has: body", key="text")
        refused(rows / "a.parquet", 'it has no column of texts "id" (data.text_key), but one of the type int64; it has: body', key="id")
        whole = (rows / "a.parquet").read_bytes()
        cut = self.folder / "cut.parquet"
        cut.write_bytes(whole[:len(whole) // 2])
        refused(cut, "cut.parquet: cannot read it as parquet")
        damaged = bytearray(whole)
        damaged[100:len(whole) // 2] = b"\xff" * (len(whole) // 2 - 100)  # the footer stays
        cut.write_bytes(damaged)
        refused(cut, "cut.parquet: behind row ")
        refused(bomb, "bomb.parquet: behind row 0", "2 GiB of memory")

    @unittest.skipUnless(HAS_PYARROW, "pyarrow is not installed")
    def test_loss_masks_of_parquet_are_those_of_the_same_json_lines(self):
        rows = [{"text": f"\u00e9 question {i}: \U0001f600 {WORDS[i % 17]} answer {WORDS[i * 5 % 17]}", "mask": [[0, 12 + i % 9], [15, 16]]} for i in range(400)]
        rows[3]["mask"], rows[4]["mask"] = None, []
        script = """
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
rows = [json.loads(line) for line in open(sys.argv[1])]
kinds = (pa.list_(pa.list_(pa.int64())), pa.large_list(pa.list_(pa.uint16(), 2)), pa.list_(pa.list_(pa.int8())))
for kind, name in zip(kinds, "abc"):
    table = pa.table({"id": range(len(rows)), "mask": pa.array([r["mask"] for r in rows], kind), "text": [r["text"] for r in rows]})
    pq.write_table(table, sys.argv[2] + f"/{name}.parquet", row_group_size=70)
for name, mask in (("none", None), ("bad", [[[0, 1]], [[3, 2]]]), ("long", [[[0, 1]], [[0, 99]]]), ("odd", [[[0, 1, 2]], [[None, 1]]]), ("text", ["[[0, 1]]"] * 2),
                   ("struct", [[{"begin": 0, "end": 1}]] * 2)):
    pq.write_table(pa.table({"text": ["one", "two"]} | ({"mask": mask} if mask else {})), sys.argv[3] + f"/{name}.parquet")
"""
        lines, many = self.folder / "lines.jsonl", self.folder / "many"
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        many.mkdir()
        subprocess.run([PYTHON, "-c", script, lines, many, self.folder], check=True)

        def prepare(source, code=0, *options):
            folder = self.folder / f"of-{source.name}"
            self.command("prepare", self.config, f'--data.source="{source}"', '--data.loss_mask_key="mask"', "--model.vocab=320", *options,
                         f'--data.folder="{folder}"', f'--tokenizer.train_on="{lines}"', "--data.validation_fraction=0", code=code)
            return [(folder / name).read_bytes() for name in ("train.bin", "train.mask")] if code == 0 else None
        expected = prepare(lines)
        for name in "abc":
            self.assertEqual(prepare(many / f"{name}.parquet"), expected)
        for name, error in (("bad", 'row 2: "mask" (data.loss_mask_key): range 0 is [3,2]; it must be [begin, end]'),
                            ("long", 'row 2: "mask" (data.loss_mask_key): [0, 99] is beyond the text, which has 3 characters'),
                            ("odd", 'row 1: "mask" (data.loss_mask_key): range 0 is [0,1,2]'),
                            ("text", '"mask" (data.loss_mask_key) is no list of ranges, list<list<int64>>, but string'),
                            ("struct", '"mask" (data.loss_mask_key) is no list of ranges, list<list<int64>>, but list<element: struct<')):
            prepare(self.folder / f"{name}.parquet", 65)
            self.assertIn(f"{name}.parquet: ", self.stderr)
            self.assertIn(error, self.stderr)
        # A file without the column counts as a whole, as lines without the key do.
        self.command("prepare", self.config, f'--data.source="{self.folder}/none.parquet"', '--data.loss_mask_key="mask"', "--model.vocab=320",
                     f'--data.folder="{self.folder}/none"', f'--tokenizer.train_on="{lines}"', "--data.validation_fraction=0")
        self.assertFalse((self.folder / "none/train.mask").exists())
