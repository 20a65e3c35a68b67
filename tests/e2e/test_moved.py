"""A run is its data, not the names of it: what was moved, copied, renamed or touched is the same data with the same bits; other
data is refused, also under the old name; what is gone is taken from the run's copies, or asked for with its option."""

import json
import os
import pathlib
import shutil
import subprocess

from common import PROGRAM, TINY, Case, kill_all, last_step, lines, tokens

WORDS = "the sea wind boat harbour old men mend nets before dawn gulls follow".split()


def text(seed, count=4000):
    return " ".join(f"{WORDS[(i * i + seed * 7 + i // 3) % len(WORDS)]} {i * i * seed % 997}" + (".\n" if i % 11 == 0 else "") for i in range(count)) + "\n"


class Moved(Case):
    def setUp(self):
        super().setUp()
        self.project = self.folder / "project"
        self.project.mkdir()
        shutil.copy(self.data, self.project / "t.bin")
        self.keys = {**TINY, "data.source": '"t.bin"', "data.token_bytes": 2, "train.max_steps": 4, "train.schedule": '"constant"',
                     "train.warmup_steps": 0}
        self.write_config(self.keys, self.project / "my.toml")
        self.longer = "--train.max_steps=6"

    def text_project(self, **keys):
        (self.project / "my-text").mkdir()
        for name in "abc":
            (self.project / f"my-text/{name}.txt").write_text(text(ord(name)))
        self.keys |= {"data.source": '"my-text/"', "model.vocab": 320, "data.validation_fraction": 0.1, "tokenizer.kind": '"byte_bpe"', **keys}
        del self.keys["data.token_bytes"]
        self.write_config(self.keys, self.project / "my.toml")

    def at(self, where, *arguments, code=0):
        done = subprocess.run([PROGRAM, *map(os.fsencode, map(str, arguments))], capture_output=True, cwd=where, timeout=180)
        self.stderr = done.stderr.decode(errors="replace")
        self.said = done.stdout.decode(errors="replace") + self.stderr
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout.decode(errors='replace')}\n{self.stderr}")
        return done.stdout.decode(errors="replace")

    def bits(self, where, run="runs/my"):
        return self.at(where, "digest", run).splitlines()[-1]

    def want(self, *overrides):
        """The bits of a run that was never moved."""
        self.at(self.project, "train", "my.toml", "--run=runs/want", self.longer, *overrides)
        return self.bits(self.project, "runs/want")

    def test_a_project_is_moved(self):
        want = self.want()
        self.at(self.project, "train", "my.toml")
        shutil.copytree(self.project, self.folder / "copy", symlinks=True)  # with other times than the original
        moved = self.project.rename(self.folder / "elsewhere")
        self.at(moved, "resume", "runs/my", self.longer)
        self.assertIn("t.bin is gone; taking", self.stderr)
        self.assertEqual(self.bits(moved), want)
        self.at(self.folder / "copy", "train", "my.toml", self.longer)
        self.assertIn("data.source was", self.said)
        self.assertEqual(self.bits(self.folder / "copy"), want)
        self.at(self.folder / "copy", "verify", "runs/my")

    def test_a_project_of_text_is_moved(self):
        self.text_project()
        want = self.want()
        self.at(self.project, "train", "my.toml")
        self.assertEqual([p.name for p in (self.project / "data").iterdir()], ["my"])
        self.project = self.project.rename(self.folder / "elsewhere")
        times = {p: p.stat().st_mtime_ns for p in (self.project / "data/my").glob("*.bin")}
        self.at(self.project, "resume", "runs/my", "--train.max_steps=5")
        for name in "abc":
            os.utime(self.project / f"my-text/{name}.txt", (1, 1))
        self.at(self.project, "train", "my.toml", self.longer)
        self.assertEqual(self.bits(self.project), want)
        self.at(self.project, "train", "my.toml", "--run.name=another", self.longer)  # a new name, the same tokens
        self.assertEqual(self.bits(self.project, "runs/another"), want)
        self.assertEqual({p: p.stat().st_mtime_ns for p in (self.project / "data/my").glob("*.bin")}, times)
        self.assertEqual([p.name for p in (self.project / "data").iterdir()], ["my"])
        shutil.rmtree(self.project / "my-text")  # the run needs only its tokens
        self.at(self.project, "train", "my.toml", "--train.max_steps=7")
        moved = (self.project / "runs/my").rename(self.folder / "alone")
        shutil.rmtree(self.project)
        self.at(self.folder, "resume", "alone", "--train.max_steps=8", code=65)
        self.assertIn("--data.source=NEW_PLACE", self.stderr)
        (self.folder / "my-text").mkdir()
        for name in "abc":
            (self.folder / f"my-text/{name}.txt").write_text(text(ord(name)))
        self.at(self.folder, "resume", "alone", "--train.max_steps=8", "--data.source=my-text")
        self.assertFalse(self.project.exists())
        self.at(self.folder, "verify", moved)

    def test_one_place_has_many_names(self):
        folder = self.project / "dat"
        folder.mkdir()
        (self.project / "t.bin").rename(folder / "t.bin")
        (self.project / "link").symlink_to("dat")
        self.at(self.project, "train", "my.toml", "--data.source=dat")
        for name in ["dat/", "./dat", "dat//", f"{folder}/", "../project/dat", "link", "link/"]:
            self.at(self.project, "config", "validate", "my.toml", f"--data.source={name}", self.longer)  # it compares as `train` does
            self.assertNotIn("data.source was", self.said)
        self.at(self.project, "train", "my.toml", "--data.source=link/", self.longer)
        self.assertNotIn("data.source was", self.said)
        self.at(self.project, "train", "my.toml", "--data.source=dat/t.bin", "--train.max_steps=7")  # the same bytes

    def test_data_lies_elsewhere(self):
        self.at(self.project, "train", "my.toml")
        want = self.want()
        (self.project / "t.bin").rename(self.folder / "renamed.bin")
        self.at(self.project, "resume", "runs/my", self.longer, code=65)
        self.assertIn("t.bin is gone", self.stderr)
        self.assertIn("--data.source=NEW_PLACE", self.stderr)
        other = self.folder / "other.bin"
        changed = bytearray((self.folder / "renamed.bin").read_bytes())
        changed[20000] ^= 1
        other.write_bytes(changed)
        self.at(self.project, "resume", "runs/my", self.longer, f"--data.source={other}", code=78)
        self.assertIn("other.bin has changed", self.stderr)
        for command, code in ((["config", "validate"], 78), (["doctor"], 3)):  # they compare as `train` does
            self.at(self.project, *command, "my.toml", f"--data.source={other}", code=code)
            self.assertIn("other.bin has changed", self.said)
        self.at(self.project, "resume", "runs/my", self.longer, f"--data.source={self.folder}/renamed.bin")
        self.assertEqual(self.bits(self.project), want)
        shutil.copy(other, self.folder / "renamed.bin")
        self.at(self.project, "resume", "runs/my", "--train.max_steps=8", code=65)
        self.assertIn("renamed.bin has changed since this run began", self.stderr)

    def test_a_run_without_a_checkpoint_may_get_other_data(self):
        process = subprocess.Popen([PROGRAM, "train", "my.toml", "--train.max_steps=100000", "--checkpoint.disk_every_steps=0"],
                                   cwd=self.project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        run = self.project / "runs/my"
        self.wait_for(lambda: last_step(run) >= 1, "a step")
        process.kill()
        process.wait(60)
        kill_all(run)
        (self.project / "t.bin").write_bytes(tokens(6000, TINY["model.vocab"]).tobytes()[4000:])
        self.at(self.project, "train", "my.toml", "--train.max_steps=4")
        self.assertIn("each sample exactly once", self.at(self.project, "verify", "runs/my"))
        (self.project / "t.bin").write_bytes(tokens(6000, TINY["model.vocab"]).tobytes()[2000:])
        self.at(self.project, "train", "my.toml", self.longer, code=65)  # now there is something that was trained
        self.assertIn("has changed since this run began", self.stderr)

    def test_the_order_of_shards_is_part_of_the_data(self):
        shards = self.project / "shards"
        shards.mkdir()
        for i, name in enumerate("ac"):
            (shards / f"{name}.bin").write_bytes(tokens(6000 + 100 * i, TINY["model.vocab"])[i * 50:].tobytes())
        source = "--data.source=shards"
        self.at(self.project, "train", "my.toml", source)
        want = self.want(source)
        (shards / "a.bin").rename(shards / "b.bin")  # still before c
        self.at(self.project, "train", "my.toml", source, "--train.max_steps=5")
        (shards / "b.bin").rename(shards / "d.bin")  # behind it
        self.at(self.project, "train", "my.toml", source, self.longer, code=65)
        self.assertIn("has changed", self.stderr.replace("is missing", "has changed").replace("was added", "has changed"))
        (shards / "d.bin").rename(shards / "val.bin")  # not to train on
        self.at(self.project, "train", "my.toml", source, self.longer, code=65)
        (shards / "val.bin").rename(shards / "a.bin")
        self.at(self.project, "train", "my.toml", source, self.longer)
        self.assertEqual(self.bits(self.project), want)

    def test_sources_of_a_blend_move(self):
        shutil.copy(self.project / "t.bin", self.project / "u.bin")
        blend = "--data.source=", '--data.blend=[{{ name = "a", source = "{}", weight = 1 }}, {{ name = "b", source = "{}", weight = 1 }}]'
        named = lambda a, b: [blend[0], blend[1].format(a, b)]
        self.at(self.project, "train", "my.toml", *named("t.bin", "u.bin"))
        want = self.want(*named("t.bin", "u.bin"))
        (self.project / "u.bin").rename(self.project / "v.bin")
        self.at(self.project, "resume", "runs/my", self.longer, code=65)
        self.assertIn('"b": ', self.stderr)
        self.assertIn("--data.blend=", self.stderr)
        self.assertIn("NEW_PLACE", self.stderr)
        (self.project / "u.bin").write_bytes(bytes(40000))
        self.at(self.project, "train", "my.toml", self.longer, *named("t.bin", "./u.bin"), code=65)
        (self.project / "w.bin").write_bytes(tokens(20000, TINY["model.vocab"])[::-1].tobytes())
        self.at(self.project, "train", "my.toml", self.longer, *named("t.bin", "w.bin"), code=78)
        self.assertIn('data.blend: "b"', self.stderr)
        self.at(self.project, "train", "my.toml", self.longer, *named("t.bin", "v.bin"))
        self.assertEqual(self.bits(self.project), want)

    def test_tokenizer_questions_and_parent_are_gone(self):
        self.text_project()
        self.at(self.project, "train", "my.toml", "--run=runs/parent", "--train.max_steps=2")
        shutil.copy(self.project / "data/my/tokenizer.json", self.project / "tokenizer.json")
        (self.project / "q.jsonl").write_text("".join(json.dumps({"task": "t", "prompt": "the sea", "choices": ["wind", "men"], "answer": 0}) + "\n" for _ in range(3)))
        keys = ["--from=runs/parent", "--tokenizer.path=tokenizer.json", "--train.tasks=q.jsonl", "--data.folder=data/own"]
        self.at(self.project, "train", "my.toml", *keys)
        want = self.want(*keys)
        gone = self.folder / "gone"
        gone.mkdir()
        for name in "tokenizer.json", "q.jsonl", "runs/parent", "my-text":
            (self.project / name).rename(gone / pathlib.Path(name).name)
        self.at(self.project, "train", "my.toml", *keys, "--train.max_steps=5")
        self.assertIn("tokenizer.path: ", self.stderr)
        self.assertIn("q.jsonl is gone; the run goes on with its copy", self.stderr)
        self.at(self.project, "resume", "runs/my", self.longer)
        self.assertEqual(self.bits(self.project), want)
        self.assertIn("tasks", lines(self.project / "runs/my/metrics.jsonl")[-1])
        # The parent at its new place, another parent, and a folder that a tokenizer lies in.
        self.at(self.project, "train", "my.toml", f"--from={gone}/parent", *keys[1:], "--train.max_steps=7")
        self.at(self.project, "train", "my.toml", "--from=runs/want", *keys[1:], "--train.max_steps=8", code=78)
        self.assertIn("resume runs/my", self.stderr)
        (gone / "dir").mkdir()
        shutil.copy(gone / "tokenizer.json", gone / "dir")
        self.at(self.project, "resume", "runs/my", f"--tokenizer.path={gone}/dir", "--train.max_steps=8")
        other = json.loads((gone / "tokenizer.json").read_text())
        other["model"]["merges"] = other["model"]["merges"][::-1]
        (gone / "other.json").write_text(json.dumps(other))
        self.at(self.project, "resume", "runs/my", f"--tokenizer.path={gone}/other.json", "--train.max_steps=9", code=78)

    def test_names_that_are_no_utf8(self):
        bad = os.fsdecode(b"caf\xe9")
        self.at(self.project, "train", "my.toml")
        want = self.bits(self.project)
        place = self.folder / bad
        place.mkdir()
        shutil.copy(self.project / "t.bin", place / f"{bad}.bin")
        shards = place / f"{bad}s"
        shards.mkdir()
        shutil.copy(self.project / "t.bin", shards / f"{bad}.bin")
        self.write_config(self.keys, place / "my.toml")
        for run, source in [(f"runs/{bad}", f"{bad}.bin"), ("runs/shards", f"{bad}s")]:
            self.at(place, "train", "my.toml", f"--run={run}", f"--data.source={source}")
            self.assertEqual(self.bits(place, run), want)
            self.assertIn(r"caf\u0000E9", (place / run / "config.toml").read_text())
            for name in "control/manifest.json", "control/objects.json", "control/status.json", "events.jsonl", "metrics.jsonl":
                (place / run / name).read_bytes().decode()
            self.at(place, "resume", run, self.longer)
            self.at(place, "verify", run)
            self.at(place, "status", run)
            json.loads(self.at(place, "runs", "runs", "--json"))
        (place / "own.toml").write_text((place / "my.toml").read_text().replace('"t.bin"', r'"caf\u0000E9.bin"'))
        self.at(place, "train", "own.toml")
        self.assertEqual(self.bits(place, "runs/own"), want)
        moved = place.rename(self.folder / os.fsdecode(b"\xff"))
        self.at(moved, "resume", f"runs/{bad}", "--train.max_steps=8")
        texts = moved / os.fsdecode(b"texts\xe9")
        texts.mkdir()
        (texts / os.fsdecode(b"\xe9.txt")).write_text(text(1))
        keys = "--model.vocab=320", "--data.token_bytes=0", "--tokenizer.kind=byte_bpe", "--data.validation_fraction=0.1"
        self.at(moved, "train", "my.toml", "--run=runs/text", f"--data.source={texts}", f"--data.folder={bad}-data", *keys)
        self.at(moved, "train", "my.toml", "--run=runs/text", f"--data.source={texts}", f"--data.folder={bad}-data", *keys, self.longer)
        self.at(moved, "verify", "runs/text")
