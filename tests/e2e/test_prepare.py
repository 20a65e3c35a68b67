"""`prepare`: documents as Hugging Face's tokenizers encodes them, EOS, and several processes for one folder."""

import array
import importlib.util
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

from common import PROGRAM, TINY, Case

HAS_TOKENIZERS = importlib.util.find_spec("tokenizers") is not None
BLANKS = ["", " ", "  ", "    ", "\n", "\n\n", "\t", " \t\n", "\r\n"]
HEADER = 1024  # bytes of a prepared token file


class Prepare(Case):
    def prepare(self, name, *options, code=0):
        folder = self.folder / name
        self.command("prepare", self.config, f'--data.folder="{folder}"', *options, code=code)
        return folder

    def ids(self, folder):
        out = array.array("H")
        out.frombytes((folder / "train.bin").read_bytes()[HEADER:])
        return out.tolist()

    @unittest.skipUnless(HAS_TOKENIZERS, "tokenizers is not installed")
    def test_rows_are_bos_the_ids_of_tokenizers_and_eos_with_the_blanks_at_their_ends(self):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runtime/tokenizer"))
        import reference
        words = reference.real_texts(100_000)
        template = reference.processors.TemplateProcessing
        llama3 = reference.byte_level(words, reference.by_regex(reference.LLAMA3), special=["<|begin_of_text|>", "<|end_of_text|>"])
        llama3.post_processor = template(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])
        bodies = ["def f():", "return  1\n\tpass", "word", "\u00e9t\u00e9 \U0001f600", "\n".join(words)[:50_000]]
        texts = [front + body + back for body in bodies for front in BLANKS for back in BLANKS]
        texts += [blanks for blanks in BLANKS if blanks]
        source = self.folder / "rows.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, ""]))
        for name, tokenizer, bos, eos in (("llama3", llama3, [0], [1]), ("llama2", reference.sentencepiece_like(words), [1], [2]),
                                          ("mistral", reference.sentencepiece_like(words, ("first", False)), [1], [2]),
                                          ("gpt2", reference.byte_level(words, [reference.pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                                           [0], [])):
            with self.subTest(name):
                file = self.folder / f"{name}.json"
                tokenizer.save(str(file))
                options = [f'--data.source="{source}"', f'--tokenizer.path="{file}"', "--model.vocab=3000", "--data.validation_fraction=0"]
                expected = [bos + tokenizer.encode(text, add_special_tokens=False).ids + eos for text in texts]
                made = self.prepare(name, *options)
                self.assertEqual(self.ids(made), sum(expected, []))
                manifest = json.loads((made / "manifest.json").read_text())
                self.assertEqual((manifest["documents"], manifest.get("appended_eos")), (len(texts), eos[0] if eos else None))
                self.assertEqual([s["path"] for s in manifest["sources"]], [str(source)])
                without = self.prepare(f"{name}-without", *options, "--tokenizer.append_eos=false")
                self.assertEqual(self.ids(without), sum((ids[:-1] if eos else ids for ids in expected), []))
                self.prepare(f"{name}-with", *options, "--tokenizer.append_eos=true", code=0 if eos else 78)

    def test_generate_ends_by_itself_where_the_documents_end(self):
        source = self.folder / "rows.jsonl"
        source.write_text('{"text": "one two three"}\n' * 400)
        words = self.folder / "words.txt"
        word = lambda number: "".join("aeinrst"[number // 7 ** k % 7] for k in range(1 + number % 4))
        words.write_text("".join(f"{word(i * i % 997)} one two three\n" for i in range(2000)))
        self.write_config({**TINY, "model.vocab": 300, "data.source": f'"{source}"', "data.document_mask": True,
                           "tokenizer.train_on": f'"{words}"', "train.micro_batch_size": 8, "train.max_steps": 150})
        run = self.train("run")
        text = self.command("generate", run, "--prompt", "one", "--max-tokens", "60", "--temperature", "0")
        self.assertEqual(text.strip(), "one two three")

    def test_a_run_goes_on_without_its_text_and_a_new_one_uses_its_tokens(self):
        (self.folder / "text").mkdir()
        for name in ("a", "b"):
            (self.folder / f"text/{name}.txt").write_text("".join(f"some line {i * i % 991} about small boats, quiet villages and {name}\n" for i in range(900)))
        self.write_config({**TINY, "model.vocab": 300, "data.source": '""'})
        self.config.write_text(self.config.read_text() + "".join(
            f'[[data.blend]]\nname = "{name}"\nsource = "text/{name}.txt"\nweight = 1\n' for name in ("a", "b")))
        run = self.train("run", "--train.max_steps=2", "--train.schedule=constant")
        shutil.rmtree(self.folder / "text")
        self.command("config", "validate", self.config, "--train.max_steps=4")
        self.train("run", "--train.max_steps=4", "--train.schedule=constant")
        self.assertEqual(self.digest(run), self.digest(self.train("new", "--train.max_steps=4", "--train.schedule=constant")))
        shutil.rmtree(self.folder / "data/tiny/b")
        self.train("refused", "--train.max_steps=4", code=65)
        self.assertIn("text/b.txt: there is no such text file or folder", self.stderr)
        self.assertFalse((self.folder / "refused/logs").exists(), "nothing was started")

    def many_texts(self):
        """A folder of 40 texts: a process that prepares it alone takes some seconds with SentencePiece."""
        texts = self.folder / "texts"
        texts.mkdir()
        for file in range(40):
            (texts / f"{file}.txt").write_text("".join(f"some line {i * i * file % 991} of text\n" for i in range(3000)))
        return texts

    def test_processes_that_prepare_one_folder_share_it_and_survive_each_other(self):
        texts = self.many_texts()
        options = [f'--data.source="{texts}"', "--tokenizer.kind=bpe", "--model.vocab=300"]
        expected = self.prepare("alone", *options)
        tokenizer = f'--tokenizer.path="{expected}/tokenizer.model"'
        folder = self.folder / "shared"
        start = lambda: subprocess.Popen([PROGRAM, "prepare", str(self.config), f'--data.folder="{folder}"', "--jobs=1", tokenizer, *options],
                                         cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        first = start()
        self.wait_for(lambda: list(folder.glob("pieces/*.tokens")), "the first piece")
        others = [start() for _ in range(2)]
        first.kill()
        first.communicate()
        for process in others:
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0, output)
        for name in ("train.bin", "validation.bin"):
            self.assertEqual((folder / name).read_bytes(), (expected / name).read_bytes(), name)
        self.assertEqual(sorted(f.name for f in folder.iterdir()),
                         [".lock", "manifest.json", "tokenizer.model", "train.bin", "validation.bin"])

    def test_a_folder_that_is_being_made_is_refused_with_another_tokenizer(self):
        """The second process finds no complete folder when it starts, and the first one's tokens when it has the lock."""
        texts = self.many_texts()
        options = [f'--data.source="{texts}"', "--tokenizer.kind=bpe", "--data.validation_fraction=0"]
        a, b = (self.prepare(f"of-{vocab}", *options, f"--model.vocab={vocab}") / "tokenizer.model" for vocab in (300, 305))
        folder = self.folder / "shared"
        start = lambda model: subprocess.Popen([PROGRAM, "prepare", str(self.config), f'--data.folder="{folder}"', "--jobs=1", *options,
                                                "--model.vocab=305", f'--tokenizer.path="{model}"'],
                                               cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        first = start(a)
        self.wait_for(lambda: list(folder.glob("pieces/*.tokens")), "the first piece")
        second = start(b)
        said = second.communicate(timeout=60)[0]
        self.assertEqual((first.wait(60), second.returncode), (0, 78), first.stdout.read() + said)
        self.assertIn(f"{folder} was prepared with another tokenizer, {a}, not with {b}", said)
        self.assertEqual(self.ids(folder), self.ids(a.parent))

    def test_tokens_that_a_run_trains_on_and_files_of_others_are_kept(self):
        rows = self.folder / "rows.jsonl"
        rows.write_text("".join(json.dumps({"text": f"a line {i * i % 991} of text, which boys jump over quickly {i}", "title": f"title {i}"}) + "\n" for i in range(2000)))
        words = self.folder / "words.txt"
        words.write_text("".join(f"a line {i * i % 991} of text, which boys jump over quickly {i}\n" for i in range(2000)))
        options = [f'--data.source="{rows}"', "--model.vocab=300", f'--tokenizer.train_on="{words}"']
        folder = self.prepare("made", *options)
        run = [*options, f'--data.folder="{folder}"', "--train.max_steps=4"]
        first = self.digest(self.train("first", *run))
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        self.prepare("made", *options, '--data.text_key="title"', code=78)
        said = [line for line in self.stderr.splitlines() if not line.startswith("prepare: compare")]  # progress, on a slow machine
        self.assertEqual(len(said), 1, self.stderr)
        self.assertIn(f"{folder} was prepared from another text, {rows}, which has changed or is read with other keys", said[0])
        self.assertEqual(before, {file.name: file.read_bytes() for file in folder.iterdir()})
        rows.write_text(rows.read_text())  # another time, the same text
        self.assertEqual(self.digest(self.train("second", *run)), first)
        for name in ("train.bin", "tokenizer.json"):
            mine = self.folder / name
            mine.mkdir()
            (mine / name).write_text("my work")
            self.prepare(name, *options, code=78)
            self.assertIn(f"{mine / name} is in the way", self.stderr)
            self.assertEqual([file.name for file in mine.iterdir()], [name])

    def test_a_large_file_is_continued_where_the_process_was_killed(self):
        words = [f"{i * i * i % 9973:x}" for i in range(5000)]
        row = lambda i: json.dumps({"text": " ".join(words[(i * 31 + k * k) % 5000] for k in range(400))}) + "\n"
        source = self.folder / "rows.jsonl.zst"
        subprocess.run(["zstd", "-q", "-1", "-o", source], input="".join(map(row, range(1000))).encode() * 22, check=True)
        sample = self.folder / "sample.txt"
        sample.write_text("\n".join(words))
        options = [f'--data.source="{source}"', "--tokenizer.kind=bpe", "--model.vocab=300", f'--tokenizer.train_on="{sample}"']
        start = lambda folder: subprocess.Popen([PROGRAM, "prepare", str(self.config), f'--data.folder="{folder}"', *options],
                                                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def kept():  # bytes of the tokens that are on the disk
            for part in folder.glob("pieces/*.part"):
                with part.open("rb") as file:
                    return struct.unpack("5Q", file.read(40).ljust(40, b"\0"))[4]

        folder = self.folder / "killed"
        first = start(folder)
        self.wait_for(kept, "the first tokens that are kept")
        first.kill()
        first.communicate()
        second = start(folder)
        output = second.communicate(timeout=120)[0]
        self.assertEqual(second.returncode, 0, output)
        self.assertIn("MB of text were encoded before the interruption", output)
        expected = self.prepare("alone", *options)
        for name in ("train.bin", "validation.bin"):
            self.assertEqual((folder / name).read_bytes(), (expected / name).read_bytes(), name)


class Kind(Case):
    """tokenizer.kind = "auto": what a run or a prepared folder has, else byte_bpe."""

    def setUp(self):
        super().setUp()
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(f"some line {i * i * i % 991} of text, which boys jump over quickly {i}\n" for i in range(2000)))
        self.write_config({**TINY, "data.source": f'"{self.text}"', "model.vocab": 320, "train.schedule": '"constant"', "train.max_steps": 3})

    def kind(self, run):
        return re.search(r'(?m)^kind = "(\w+)"', (run / "config.toml").read_text())[1]

    def without_kind(self, run):
        """As a version before the key wrote it."""
        config = run / "config.toml"
        config.write_text(re.sub(r'(?m)^kind = "bpe"\n', "", config.read_text()))
        return run

    def folders(self):
        return {folder.parent.name: folder.name for folder in self.folder.glob("data/*/tokenizer.*")}

    def test_runs_and_prepared_folders_of_before_keep_theirs(self):
        want = self.digest(self.train("want", "--tokenizer.kind=bpe", "--train.max_steps=5"))
        old = self.without_kind(self.train("old", "--tokenizer.kind=bpe"))
        self.train("old", "--train.max_steps=4")
        self.assertNotIn("tokenizer", self.stderr)
        self.assertEqual(self.kind(old), "bpe")
        shutil.rmtree(self.folder / "data")  # and makes its tokens again
        self.command("resume", self.without_kind(old), "--train.max_steps=5")
        self.assertEqual((self.kind(old), self.digest(old)), ("bpe", want))
        new = self.train("new", "--train.max_steps=5")
        self.assertIn('tokenizer.kind is "bpe", as in data/old, which is prepared\n', self.stderr)
        self.assertNotIn("training a tokenizer", self.stderr)
        self.assertEqual((self.kind(new), self.digest(new), self.folders()), ("bpe", want, {"old": "tokenizer.model"}))
        self.assertRegex(self.command("config", "show", self.config), r'(?m)^tokenizer.kind +"bpe" +auto$')
        for run, option, says in (("new", "--train.max_steps=6", 'tokenizer.kind was "bpe" and is now "byte_bpe"'),
                                  ("refused", "--data.folder=data/old", "with another tokenizer, a trained tokenizer.model of 320 tokens, not with a "
                                                                        "trained tokenizer.json of 320 tokens")):
            self.train(run, "--tokenizer.kind=byte_bpe", option, code=78)
            self.assertIn(says, self.stderr)
        self.assertEqual(self.kind(self.train("named", "--tokenizer.kind=byte_bpe")), "byte_bpe")
        self.assertEqual(sorted(self.folders().values()), ["tokenizer.json", "tokenizer.model"])
        self.assertEqual(self.kind(self.train("named", "--train.max_steps=4")), "byte_bpe")
        # Of another text, the folder says nothing.
        self.text.write_text(self.text.read_text()[1000:])
        self.assertEqual(self.kind(self.train("changed")), "byte_bpe")
        self.assertEqual(len(self.folders()), 3)
        self.assertEqual(self.kind(self.train("old", "--train.max_steps=6")), "bpe")

    def test_a_new_tokenizer_is_byte_bpe(self):
        self.assertRegex(self.command("config", "show", self.config), r'(?m)^tokenizer.kind +"byte_bpe" +auto$')
        self.command("config", "validate", self.config, "--tokenizer.append_eos=true", code=78)
        self.assertIn('leave the key out, or set tokenizer.kind = "bpe"', self.stderr)
        self.command("prepare", self.config)
        self.assertIn("training a tokenizer (byte_bpe, 320 tokens)", self.stderr)
        self.assertNotIn("tokenizer.kind", self.stderr)
        run = self.train("run")
        self.assertEqual((self.kind(run), self.folders()), ("byte_bpe", {"tiny": "tokenizer.json"}))
        # With a path there is no kind, and so nothing that contradicts it.
        self.command("prepare", self.config, "--tokenizer.kind=bpe", "--data.folder=other")
        named = self.train("path", "--tokenizer.path=other", "--tokenizer.kind=byte_bpe")
        self.assertIn("both say which tokenizer the run has", self.stderr)
        self.assertEqual(self.kind(named), "auto")
        for step, kind in (4, "bpe"), (5, "byte_bpe"):  # as earlier versions recorded it
            config = named / "config.toml"
            config.write_text(re.sub(r'(?m)^kind = "auto"', f'kind = "{kind}"', config.read_text()))
            self.train("path", "--tokenizer.path=other", f"--train.max_steps={step}")
            self.assertNotIn("tokenizer.kind", self.stderr)
            self.assertEqual(self.kind(named), "auto")
