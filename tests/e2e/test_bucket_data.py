"""Data in an object store: the same bits as from disk, whatever the server does; objects that are replaced; text to
prepare; what `doctor` says; secrets."""

import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import unittest

from bucket import SECRET, BucketCase
from common import HAS_PYARROW, PYTHON, TINY, events, last_step, leftovers, lines, tokens, trainer_pids

STEPS = ("--train.max_steps=12", "--checkpoint.disk_every_steps=4", "--train.validation_every_steps=6")
WORDS = "the river carries small boats past quiet villages while old men repair nets and sing about summer storms".split()
TEXT = "\n".join(" ".join(WORDS[(i * j) % len(WORDS)] for j in range(1, 40)) for i in range(1, 800))
LOOKS = ("list-type",)  # requests that ask what the bucket holds


class BucketData(BucketCase):
    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"
        self.options = [*self.flat, *STEPS, f"--data.cache_folder={self.cache}"]

    def reads(self, after=0):
        return [r for r in self.requests("GET")[after:] if not any(look in r for look in LOOKS)]

    def many_tokens(self):
        """Eight chunks, of which a cache of 0.001 GB holds three."""
        self.data.write_bytes(tokens(1_000_000, TINY["model.vocab"]).tobytes())
        self.put(self.data, "data/tokens.bin")
        return ["--data.source=s3://bucket/data/tokens.bin", "--data.cache_gb=0.001"]

    def test_a_prepared_folder_in_a_bucket_gives_the_same_bits_as_on_disk(self):
        text, folder = self.folder / "text.txt", self.folder / "prepared"
        text.write_text(TEXT)
        self.command("prepare", self.config, f"--data.source={text}", f"--data.folder={folder}", "--data.validation_fraction=0.1",
                     "--tokenizer.vocab=300", "--model.vocab=300")
        self.put(folder, "data/prepared")
        options = [*self.options, "--model.vocab=300"]
        want = self.digest(self.train("local", *options, f"--data.source={folder}"))
        run = self.train("run", *options, "--data.source=s3://bucket/data/prepared")
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.train("packed", *options, "--data.source=s3://bucket/data/prepared", "--data.pack=best_fit", code=78)
        self.assertIn("data.pack: the documents of s3://bucket/data/prepared cannot be found without reading all of it", self.stderr)
        self.assertEqual([s["loss"] for s in lines(run / "metrics.jsonl")], [s["loss"] for s in lines(self.folder / "local/metrics.jsonl")])
        self.assert_no_secret(run, self.cache, self.folder / "data")
        # All chunks are in the cache: another run asks only what the bucket holds.
        before = len(self.requests("GET"))
        self.assertEqual(self.digest(self.train("again", *options, "--data.source=s3://bucket/data/prepared/")), want)
        self.assertEqual(self.reads(before), [])
        self.command("evaluate", run, "--data=s3://bucket/data/prepared")

    def test_every_format_and_a_blend_give_the_same_bits_as_on_disk(self):
        ids = tokens(20000, TINY["model.vocab"])
        want = self.undisturbed(*self.flat, *STEPS)
        megatron = self.folder / "corpus_text_document"
        megatron.with_suffix(".bin").write_bytes(ids.tobytes())
        megatron.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ1i1q2q", 1, 8, 1, 2, len(ids), 0, 0, 1))
        for suffix in (".bin", ".idx"):
            self.put(megatron.with_suffix(suffix), f"m/corpus{suffix}")
        self.assertEqual(self.digest(self.train("megatron", *self.options, "--data.source=s3://bucket/m/corpus")), want)
        shards = self.folder / "shards"
        shards.mkdir()
        for i, begin in enumerate(range(0, 20000, 7000)):
            part = ids[begin:begin + 7000]
            (shards / f"train_{i}.bin").write_bytes(b"LITPKDS" + struct.pack("<QBQ", 1, 8, len(part)) + part.tobytes())
        self.put(shards, "shards")
        self.assertEqual(self.digest(self.train("litgpt", *self.options, "--data.source=s3://bucket/shards")), want)
        self.put(self.data, "tokens.bin")
        blend = "--data.source=", '--data.blend=[{{name="a", source="{}", weight=2}}, {{name="b", source="{}", weight=1}}]'
        want = self.digest(self.train("blend", *self.options, blend[0], blend[1].format(self.data, shards)))
        run = self.train("mixed", *self.options, blend[0], blend[1].format("s3://bucket/tokens.bin", shards))
        self.assertEqual(self.digest(run), want)

    def test_faults_of_the_server_and_a_killed_trainer_change_no_bit(self):
        source = self.many_tokens()
        want = self.undisturbed(*self.flat, *STEPS)
        self.faults({"match": "GET .*tokens.bin", "kind": "slow", "ms": 300, "times": 2},
                    {"match": "GET", "kind": "random", "percent": 40, "seed": 5})
        run = self.train("run", *self.options, *self.layout(2, 1), *source,
                         '--inject.faults=[{step=5, kind="kill_trainer", target="n1.0"}]')
        self.assertEqual(self.digest(run), want)
        self.assertTrue(events(run, "injected"))
        self.assertIn("each sample exactly once", self.verify(run))
        held = sum(file.stat().st_size for file in self.cache.rglob("*") if file.is_file())
        self.assertLessEqual(held, 1e6 + 8)
        self.assertGreater(len(self.reads()), 8)  # chunks that were removed are fetched again

    def test_training_waits_for_a_server_that_fails_and_goes_on(self):
        source = self.many_tokens()
        want = self.undisturbed(*self.flat, *STEPS)
        self.faults({"match": "GET .*tokens.bin", "kind": "status", "skip": 6})
        run, process = self.start("run", *self.options, *source)
        failed = lambda: [r for r, status in json.loads(self.control("GET", "log")) if "tokens.bin" in r and status == 503]
        self.wait_for(lambda: len(failed()) >= 6, "requests that fail")
        self.assertLess(last_step(run), 12)
        self.faults()
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out)
        self.assertEqual(self.digest(run), want)

    def test_an_outage_that_does_not_end_ends_the_run_and_names_the_object(self):
        source = self.many_tokens()
        self.faults({"match": "GET .*tokens.bin", "kind": "status", "skip": 6})
        run = self.train("run", *self.options, *source, "--supervision.progress_timeout_ms=4000", "--supervision.give_up_after_cycles=1",
                         code=3)
        self.assertIn("GET s3://bucket/data/tokens.bin", self.stderr)
        self.assertIn("HTTP 503", self.stderr)
        self.assertNotIn("node_suspected", [e["kind"] for e in lines(run / "events.jsonl")])
        self.faults()
        self.train("run", *self.options, *source)
        self.assertEqual(last_step(run), 12)

    def test_an_interrupt_ends_a_run_whose_server_hangs(self):
        source = self.many_tokens()
        self.faults({"match": "GET .*tokens.bin", "kind": "hang", "skip": 6})
        run, process = self.start("run", *self.options, *source)
        hanging = lambda: [r for r, status in json.loads(self.control("GET", "log")) if "tokens.bin" in r and status == 0]
        self.wait_for(hanging, "a request that hangs")
        self.wait_for(lambda: trainer_pids(run), "the run's start")
        process.send_signal(signal.SIGINT)
        asked = lambda: events(run, "stop_requested")
        self.wait_for(asked, "the request to stop, which waits for the step")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("stopped at once by a second Ctrl-C", out)
        self.assertEqual(leftovers(run), [])

    def test_validation_tokens_are_fetched_before_they_are_needed(self):
        folder = self.folder / "folder"
        folder.mkdir()
        shutil.copy(self.data, folder / "train.bin")
        (folder / "val.bin").write_bytes(tokens(100_000, TINY["model.vocab"]).tobytes() * 40)  # 31 chunks, of which the cache holds 11
        self.put(folder, "data/folder")
        run, process = self.start("run", *self.options, *self.layout(2, 1), "--data.source=s3://bucket/data/folder",
                                  "--data.cache_gb=0.003", "--train.validation_samples=20", "--train.validation_every_steps=1", "--train.max_steps=100000",
                                  "--checkpoint.disk_every_steps=1")
        self.wait_for(lambda: last_step(run) >= 2, "two steps")
        self.faults({"match": "GET .*val.bin", "kind": "hang"})
        # Two trainers that ask for a sample only when they need it, and again after 20 s, would ask four times in this time.
        hanging = lambda: [r for r, status in json.loads(self.control("GET", "log")) if "val.bin" in r and status == 0]
        self.wait_for(lambda: len(hanging()) >= 6, "requests for the samples of the next micro-batches", timeout=35)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            self.wait_for(lambda: events(run, "stop_requested"), "the request to stop")
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out)

    def test_an_object_that_is_replaced_or_missing_is_named(self):
        self.put(self.data, "data/tokens.bin")
        source = "--data.source=s3://bucket/data/tokens.bin"
        self.train("run", *self.options, source)
        same_size = self.folder / "other.bin"
        same_size.write_bytes(b"\x01\0" + self.data.read_bytes()[2:])
        self.put(same_size, "data/tokens.bin")
        self.train("run", *self.options, source, "--train.max_steps=14", code=65)
        self.assertIn("s3://bucket/data/tokens.bin has changed since this run began", self.stderr)
        self.put(self.data, "data/tokens.bin")
        self.train("run", *self.options, source, "--train.max_steps=14")
        self.train("none", *self.options, "--data.source=s3://bucket/data/token.bin", code=65)
        self.assertIn("s3://bucket/data/token.bin: the bucket holds no such object", self.stderr)
        self.train("text", *self.options, "--data.source=s3://bucket/data/", "--data.format=text", code=65)
        self.assertIn("s3://bucket/data: no text was found", self.stderr)

    def test_an_object_that_is_replaced_while_the_run_trains_ends_it_after_a_save(self):
        source = self.many_tokens()
        run, process = self.start("run", *self.options, *source, "--train.max_steps=100000", "--checkpoint.disk_every_steps=0")
        self.wait_for(lambda: last_step(run) >= 2, "two steps")
        self.data.write_bytes(b"\x01\0" + self.data.read_bytes()[2:])
        self.put(self.data, "data/tokens.bin")
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 65, out)
        self.assertIn("s3://bucket/data/tokens.bin: was replaced after this run began to read it", out)
        self.assertIn("was saved", out)

    def test_text_is_prepared_from_a_bucket_as_from_disk(self):
        texts = self.folder / "texts"
        texts.mkdir()
        (texts / "a.txt").write_text(TEXT)
        with gzip.open(texts / "b.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({"text": line}) + "\n" for line in TEXT.splitlines())
        self.put(texts, "texts")
        options = ["--tokenizer.vocab=300", "--model.vocab=300", "--data.format=text", f"--data.cache_folder={self.cache}"]
        self.command("prepare", self.config, f"--data.source={texts}", f"--data.folder={self.folder}/local", *options)
        self.faults({"match": "GET", "kind": "random", "percent": 40, "seed": 6})
        self.command("prepare", self.config, "--data.source=s3://bucket/texts", f"--data.folder={self.folder}/bucket", *options)
        for name in ("train.bin", "validation.bin", "tokenizer.json"):
            self.assertEqual((self.folder / "bucket" / name).read_bytes(), (self.folder / "local" / name).read_bytes(), name)
        self.assert_no_secret(self.folder / "bucket")

    @unittest.skipUnless(HAS_PYARROW, "pyarrow is not installed")
    def test_of_parquet_in_a_bucket_only_the_columns_of_the_text_are_read(self):
        script = """
import os, sys
import pyarrow as pa, pyarrow.parquet as pq
lines = sys.stdin.read().splitlines()
table = pa.table({"image": [os.urandom(8000) for _ in lines], "text": lines, "mask": [[[0, 5]]] * len(lines)})
pq.write_table(table, sys.argv[1], row_group_size=300, compression="zstd")
"""
        file = self.folder / "wide.parquet"
        subprocess.run([PYTHON, "-c", script, file], input=TEXT, text=True, check=True)
        self.put(file, "wide.parquet")
        # A cache that is smaller than the file: chunks of 256 KiB.
        options = ["--tokenizer.vocab=300", "--model.vocab=300", f"--data.cache_folder={self.cache}", "--data.cache_gb=0.003",
                   '--data.loss_mask_key="mask"', "--supervision.progress_timeout_ms=4000"]
        self.command("prepare", self.config, f"--data.source={file}", f"--data.folder={self.folder}/local", *options)
        self.faults({"match": "GET /bucket/wide.parquet", "kind": "status"})
        source = ["--data.source=s3://bucket/wide.parquet", f"--data.folder={self.folder}/bucket"]
        self.command("prepare", self.config, *source, *options, code=74)
        self.assertIn("GET s3://bucket/wide.parquet", self.stderr)
        self.assertIn("HTTP 503", self.stderr)
        for faults in ([], [{"match": "GET", "kind": "random", "percent": 40, "seed": 6}]):
            self.faults(*faults)
            shutil.rmtree(self.folder / "bucket", ignore_errors=True)
            shutil.rmtree(self.cache)
            before = len(self.requests("GET"))
            self.command("prepare", self.config, *source, *options)
            for name in ("train.bin", "train.mask", "tokenizer.json"):
                self.assertEqual((self.folder / "bucket" / name).read_bytes(), (self.folder / "local" / name).read_bytes(), name)
            if not faults:
                self.assertLess(len(self.reads(before)), file.stat().st_size / (256 << 10) / 2)

    def test_doctor_checks_the_buckets_of_a_configuration(self):
        self.put(self.data, "data/tokens.bin")
        buckets = ["--data.source=s3://bucket/data/tokens.bin", "--checkpoint.upload=s3://bucket/up", "--train.max_steps=5"]
        said = self.command("doctor", self.config, *buckets)
        self.assertIn(f"data.source: s3://bucket/data/tokens.bin: 1 object, {self.data.stat().st_size} bytes, listed and read", said)
        self.assertIn("checkpoint.upload: s3://bucket/up: listed, written with conditions, read and removed", said)
        left = [r for r in self.requests("/bucket/up/doctor-") if r.startswith("DELETE")]
        self.assertEqual(len(left), 1)
        self.faults({"match": "PUT", "kind": "unconditional"})
        self.command("doctor", self.config, *buckets, code=3)
        self.assertIn("the server ignores the condition of a put", self.stderr)
        os.environ["AWS_SECRET_ACCESS_KEY"] = "hidden-wrong-key"
        said = self.command("doctor", self.config, *buckets, code=3)
        self.assertIn("SignatureDoesNotMatch", said + self.stderr)
        self.assertNotIn("hidden-wrong-key", said + self.stderr)
        self.assertNotIn(SECRET, said + self.stderr)
