"""Wrong input is refused before any process starts: one line that names the place, and the documented exit code."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess

from common import BIN, PROGRAM, TINY, Case, last_step, leftovers, lines, status


class BadInput(Case):
    def refused(self, code, *overrides, says=()):
        run = self.folder / "run"
        self.command("train", self.config, f"--run={run}", "--train.max_steps=2", *overrides, code=code, timeout=30)
        text = self.stderr.strip().splitlines()[-1]
        for word in says:
            self.assertIn(word, text)
        self.assertFalse((run / "metrics.jsonl").exists())

    def test_submit_doctor_and_validate_find_what_train_would_find(self):
        run = self.folder / "run"

        def commands(*overrides, code, train=True):
            yield "config validate", self.command("config", "validate", self.config, f"--run.folder={run}", *overrides, code=code)
            yield "submit", self.command("submit", self.config, f"--run={run}", "--dry-run", *overrides, code=code)
            yield "doctor", self.command("doctor", self.config, f"--run={run}", *overrides, code=3 if code else 0)
            if train:
                yield "train", self.command("train", self.config, f"--run={run}", *overrides, code=code)

        for (name, said), word in zip(commands("--train.max_steps=2", code=0, train=False), (": valid; ", "#SBATCH", ": can begin")):
            self.assertIn(word, said, name)
        beyond, short, tasks, text, other = (self.folder / name for name in ("beyond.bin", "short.bin", "tasks.jsonl", "a.txt", "other"))
        beyond.write_bytes(self.data.read_bytes()[:2000] + struct.pack("<H", 60000))
        short.write_bytes(b"\x01\x00" * 9)
        tasks.write_text('{"task": "a", "prompt": "b"}\n')
        text.write_text("In the beginning was the text. " * 99)
        self.train("other", "--train.max_steps=1", "--model.layers=1")

        def blend(tokens):
            return "--data.source=", '--data.blend=[{name = "a", source = "%s", weight = 1}, {name = "b", source = "%s", weight = 1}]' % (text, tokens)

        for code, overrides, says in [(65, [f"--data.source={self.folder}/nothing.bin"], "nothing.bin"),
                                      (65, [f"--data.source={beyond}"], "60000"),
                                      (65, blend(short), "9 tokens are fewer than one sample"),
                                      (65, [f"--train.tasks={tasks}"], f"{tasks}: line 1"),
                                      (78, [f"--run.from={other}"], "layers = 1"),
                                      (65, [f"--run.from={self.folder}/nowhere"], f"{self.folder}/nowhere"),
                                      (78, [f"--tokenizer.path={self.folder}/no.model"], "no.model")]:
            for name, said in commands("--train.max_steps=2", *overrides, code=code):
                with self.subTest(name, says=says):
                    self.assertIn(says, self.stderr.strip().splitlines()[-1])
                    self.assertFalse((run / "metrics.jsonl").exists())
        self.command("submit", self.config, f"--run={run}", "--train.max_steps=2", "--sweep.seeds=[1,2]", code=78)
        self.assertIn("has a [sweep]", self.stderr)
        self.assertIn("valid", self.command("config", "validate", self.config, "--train.max_steps=2", "--sweep.seeds=[1,2]"))

    def test_unreadable_log_rules_are_refused(self):
        rules = self.folder / "rules.toml"
        for text, says in [(None, "No such file"), ('[[rule]]\nname = "mine"\n', "rule 'mine'")]:
            if text:
                rules.write_text(text)
            key = f"--supervision.log_rules={rules}"
            self.refused(78, key, says=["supervision.log_rules: ", str(rules), says])
            self.command("submit", self.config, f"--run={self.folder / 'run'}", "--dry-run", "--train.max_steps=2", key, code=78)
            self.command("config", "validate", self.config, "--train.max_steps=2", key, code=78)
            self.assertIn("command line: supervision.log_rules: ", self.stderr)
            self.assertFalse((self.folder / "run").exists())

    def test_an_http_host_that_is_not_of_this_machine_is_refused(self):
        for host in ["no.such.host.invalid", "203.0.113.1"]:  # the second one is a documentation address (RFC 5737)
            self.refused(78, "--metrics.http_port=8000", f"--metrics.http_host={host}", says=["metrics.http_host", host])

    def test_a_missing_config_is_refused(self):
        self.command("train", self.folder / "nowhere.toml", code=78)

    def test_a_wrong_command_line_gives_one_line_with_a_suggestion(self):
        for arguments, words in [(["trian"], ["unknown command 'trian'", "'train'"]), (["config", "shwo"], ["'shwo'", "config --help"]),
                                 (["frobnicate"], ["'frobnicate'", "simplescale --help"]), ([], ["a command is missing", "train, "]),
                                 (["train"], ["CONFIG is required"]), (["status", "x", "--jsn"], ["unknown option --jsn", "'--json'"]),
                                 (["generate", "x", "--max-tokns=3"], ["'--max-tokens'"]), (["verify", "a", "b"], ["verify --help"])]:
            self.command(*arguments, code=64)
            self.assertEqual(len(self.stderr.splitlines()), 1, self.stderr)
            for word in words:
                self.assertIn(word, self.stderr)

    def test_invalid_token_files_are_refused(self):
        self.refused(65, f'--data.source="{self.folder}/nothing.bin"', says=["nothing.bin"])
        odd = self.folder / "odd.bin"
        odd.write_bytes(b"\x01\x00" * 500 + b"\x07")
        self.refused(65, f'--data.source="{odd}"', says=["odd.bin"])
        beyond = self.folder / "beyond.bin"
        beyond.write_bytes(b"\x01\x00" * 2000 + struct.pack("<H", 60000) + b"\x01\x00" * 2000)
        self.refused(65, f'--data.source="{beyond}"', says=["beyond.bin", "4000"])
        short = self.folder / "short.bin"
        short.write_bytes(b"\x01\x00" * 10)
        self.refused(65, f'--data.source="{short}"', says=["short.bin"])
        magic = self.folder / "magic.bin"
        magic.write_bytes(struct.pack("<256i", 20240520, 99, 5, *([0] * 253)) + b"\x01\x00" * 5)
        self.refused(65, f'--data.source="{magic}"', says=["magic.bin"])
        pipe = self.folder / "pipe.bin"
        os.mkfifo(pipe)
        self.refused(65, f'--data.source="{pipe}"', says=["pipe.bin is not a file"])

    def test_a_source_folder_without_text_is_refused(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused(65, f'--data.source="{empty}"', says=[str(empty), "no text was found"])
        (empty / "a.txt").write_text("")
        self.refused(65, f'--data.source="{empty}"', says=[str(empty), "no text was found"])

    def test_impossible_faults_and_a_missing_tokenizer_are_refused(self):
        layout = self.layout(2, 1)
        for fault, says in [('step = 1, kind = "kill_trainer", target = "n9.0"', ["'n9.0'", "did you mean 'n"]),
                            ('step = 1, kind = "kill_agent", target = "n1.0"', ["is a trainer", "'n1'"]),
                            ('step = 1, kind = "kill_agent"', ["a kill_agent needs a target such as"]),
                            ('step = 3, kind = "kill_trainer", target = "n1.0"', ["ends after step 2"])]:
            self.refused(78, *layout, "--inject.faults=[{ %s }]" % fault, says=says)
        (self.folder / "tokenizer.model").write_text("x")
        self.refused(78, f'--tokenizer.path="{self.folder}/tokeniser.model"', says=["no such file", f"'{self.folder}/tokenizer.model'"])

    def test_too_many_processes_for_this_host_are_refused(self):
        self.refused(78, "--cluster.nodes=1000", "--cluster.trainers_per_node=16", "--parallel.group_nodes=1", "--parallel.strategy=hybrid_shard",
                     "--supervision.warm_processes=1", says=["18002 processes", "1000 agents", "GiB", "cores", "--oversubscribe"])
        self.refused(78, "--train.sample_tokens=1000001", says=["sample_tokens"])  # the limit of `generate`
        self.refused(78, "--cluster.nodes=10000", "--parallel.strategy=no_shard", says=["would be on 10000 trainers", "1024 at most"])

    def test_a_folder_of_something_else_is_refused_and_not_written_to(self):
        run = self.folder / "run"
        run.mkdir()
        (run / "thesis.tex").write_text("mine")
        self.refused(78, says=["is not a run folder"])
        self.assertEqual(os.listdir(run), ["thesis.tex"])
        (run / "thesis.tex").unlink()
        (run / "config.toml").write_text(self.config.read_text().replace("layers = 2", "layers = 1"))
        self.refused(78, "--data.ledger=false", says=["model.layers was 1 and is now 2", "data.ledger was true and is now false"])
        self.assertEqual(os.listdir(run), ["config.toml"])

    def test_a_run_folder_that_is_not_utf8_works_and_records_that_are_folders_are_refused(self):
        strange = os.fsencode(self.folder) + b"/a\xff"
        for command in ([b"train", os.fsencode(self.config), b"--run=" + strange, b"--train.max_steps=2"], [b"verify", strange],
                        [b"status", strange], [b"resume", strange, b"--train.max_steps=3"], [b"digest", strange]):
            done = subprocess.run([os.fsencode(PROGRAM), *command], capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
        run = self.train("run", "--train.max_steps=2")
        (run / "control/end.json").unlink()
        self.command("train", self.config, f"--run={run}", "--train.max_steps=2")  # trains no further step
        self.assertIsNone(status(run)["loss"])
        (run / "control/end.json").unlink()
        (run / "control/end.json").mkdir()
        self.assertIn(": valid", self.verify(run))
        (run / "ledger.jsonl").rename(run / "old.jsonl")
        (run / "ledger.jsonl").mkdir()
        self.command("train", self.config, f"--run={run}", "--train.max_steps=2", code=78)
        self.assertIn("ledger.jsonl is not a file", self.stderr)

    def test_a_run_ends_when_its_folder_is_deleted(self):
        run, process = self.start("run", *self.layout(2, 1), "--train.max_steps=100000", "--cluster.join_timeout_ms=4000")
        self.slow_down(run, fault="slow_node")
        self.wait_for(lambda: shutil.rmtree(run, ignore_errors=True) or not run.exists(), "the folder to go")
        self.assertEqual(process.wait(60), 74)
        self.assertIn(f"the run folder {run} is gone", process.stdout.read().splitlines()[-1])
        self.wait_for(lambda: not leftovers(run), "all its processes to end")

    def test_a_folder_that_comes_back_costs_no_step(self):
        """As on a file system that is mounted again: JOB-1, the agents keep their memory."""
        run, process = self.start("run", *self.layout(2, 1), "--train.max_steps=100000", "--checkpoint.disk_every_steps=0")
        self.slow_down(run, fault="slow_node")
        away = run.with_name("away")
        run.rename(away)
        self.wait_for(lambda: any(f"the run folder {run} is gone" in log.read_text(errors="replace") for log in (away / "logs").glob("*.log")),
                      "the supervisor to end")
        before = last_step(away)
        away.rename(run)
        self.wait_for(lambda: last_step(run) > before, "steps")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, last_step(run) + 1)))
        self.assertIn("each sample exactly once", self.verify(run))

    def test_verify_finds_truncated_and_changed_records(self):
        run = self.train("run", *self.layout(2, 1), "--train.max_steps=6")
        self.verify(run)
        for file, line, says in [("events.jsonl", -1, "no event says so"), ("metrics.jsonl", -1, "ends at step 5"),
                                 ("ledger.jsonl", -1, "are missing")]:
            whole = (run / file).read_text()
            (run / file).write_text("".join(whole.splitlines(True)[:line]))
            self.assertIn(says, self.command("verify", run, code=65))
            (run / file).write_text(whole)
        ledger = (run / "ledger.jsonl").read_text()
        (run / "ledger.jsonl").write_text(ledger.replace('"trainer":"n1.0"', '"trainer":"n7.0"', 1))
        self.assertIn('"n7.0" does not train in generation 1', self.command("verify", run, code=65))
        (run / "ledger.jsonl").write_text(ledger.replace('"generation":1', '"generation":9'))
        self.assertIn("generation 9 is in no line of events.jsonl", self.command("verify", run, code=65))

    def test_folders_that_cannot_be_used_are_refused(self):
        self.command("train", self.config, "--run=/proc/nowhere", code=78)
        (self.folder / "text.txt").write_text("some text")
        self.refused(78, f'--data.source="{self.folder}/text.txt"', "--data.folder=/proc/nowhere", says=["data.folder: cannot write to /proc/nowhere"])
        self.command("digest", self.folder, code=65)
        self.command("status", self.folder / "none", code=65)

    def test_data_that_changed_since_the_first_start_is_refused(self):
        run = self.train("run", "--train.max_steps=4", "--checkpoint.disk_every_steps=2")
        data = bytearray(self.data.read_bytes())
        data[2000] ^= 1
        self.data.write_bytes(data)
        self.command("train", self.config, f"--run={run}", "--train.max_steps=6", "--checkpoint.disk_every_steps=2", code=65)
        self.assertIn("has changed since this run began", self.stderr)

    def test_device_cuda_without_a_gpu_is_refused(self):
        if pathlib.Path("/proc/driver/nvidia/version").exists():
            self.skipTest("SKIPPED: there is a GPU here")
        self.command("train", self.config, f"--run={self.folder / 'run'}", "--train.max_steps=4", "--cluster.device=cuda", code=78)
        self.assertIn("no NVIDIA driver", self.stderr)

    def test_each_refusal_of_submit_exits_with_78_and_leaves_nothing(self):
        sbatch = self.folder / "sbatch"
        sbatch.write_text("#!/bin/sh\necho 'Requested node configuration is not available'\nexit 1\n")
        sbatch.chmod(0o755)
        run = self.folder / "run"
        for path, flags, says in ((self.folder, [], "Requested node configuration"), ("/nowhere", [], "cannot run sbatch"),
                                  (self.folder, ["--model.heads=7"], "does not divide")):
            self.command("submit", self.config, f"--run={run}", "--train.max_steps=3", *flags, code=78, env={"PATH": str(path)})
            self.assertIn(says, self.stderr)
            self.assertFalse(run.exists())

    def test_evaluate_needs_validation_tokens(self):
        run = self.train("run", "--train.max_steps=2", "--data.validation_fraction=0")
        self.command("evaluate", run, code=65)
        self.assertIn(f"{run}: its data has no validation tokens", self.stderr)

    def test_evaluate_reads_other_tokens_and_says_how_to_make_them_of_text(self):
        run = self.train("run", "--train.max_steps=1")
        for option in ("--data", "--data.source"):
            self.assertIn("validation loss", self.command("evaluate", run, f"{option}={self.data}"))
        text = self.folder / "text.txt"
        text.write_text("In the beginning was the text. " * 99)
        for source in (text, "debian:bible-kjv"):
            self.command("evaluate", run, f"--data.source={source}", code=64)
            self.assertEqual(len(self.stderr.splitlines()), 1)
            self.assertRegex(self.stderr, f"{source} is text.*prepare CONFIG --data.source={source}.*--data=NEW_FOLDER")

    def test_damaged_checkpoints_are_named_on_stderr(self):
        keys = ["--train.max_steps=60", "--checkpoint.disk_every_steps=20"]
        run = self.train("run", *keys)
        shards = sorted((run / "checkpoints").glob("step-*/shard-*"))
        shards[-1].write_bytes(shards[-1].read_bytes()[:-9])
        self.command("train", self.config, f"--run={run}", *keys)
        self.assertIn("the next older checkpoint is used", self.stderr)
        for shard in (run / "checkpoints").glob("step-*/shard-*"):
            shard.write_bytes(shard.read_bytes()[:-9])
        self.command("train", self.config, f"--run={run}", *keys, code=65)
        self.assertIn("no valid checkpoint", self.stderr)


class BeforePreparation(Case):
    """What can be known without tokens is refused before a text is prepared."""
    def setUp(self):
        super().setUp()
        self.write_config({**TINY, "model.vocab": 400, "train.max_steps": 2})
        self.text = self.folder / "text.txt"
        self.text.write_text(" ".join(f"{chr(97 + i % 26)}{chr(97 + i * 7 % 25)}{chr(97 + i * i % 23)} {i * i % 977} word" for i in range(9000)))

    def refused(self, code, says, *overrides, command="train"):
        run = [f"--run={self.folder / 'run'}"] if command == "train" else []
        self.command(command, self.config, *run, *overrides, code=code, timeout=60)
        problem = self.stderr.strip().splitlines()[-1]
        self.assertIn(says, problem)
        self.assertNotIn("prepared", self.stderr.replace(problem, ""))
        self.assertEqual([f.name for f in (self.folder / "run", self.folder / "data") if f.exists()], [], self.stderr)
        return problem

    def test_a_parent_that_cannot_be_used_is_refused_and_leaves_nothing(self):
        parent = self.train("parent", "--train.max_steps=1")
        good = self.folder / "good"
        self.command("export", parent, good)
        text = f"--data.source={self.text}"

        def damaged(change):
            folder = self.folder / "bad"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(good, folder)
            change(folder)
            return ["--from", folder, text]

        def config(**keys):
            def change(folder):
                document = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps({**document, **keys}))
            return change

        def no_shard(folder):
            header = folder / "model.safetensors.index.json"
            (folder / "model.safetensors").unlink()
            header.write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}))

        def truncated(folder):
            weights = folder / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-100])

        self.refused(65, "/nowhere: no such folder", "--from", "nowhere", text)
        self.refused(65, "model-00001-of-00002.safetensors", *damaged(no_shard))
        self.refused(65, "model.safetensors", *damaged(truncated))
        self.refused(65, "config.json asks for", *damaged(config(intermediate_size=96)))
        self.refused(65, "rope", *damaged(config(rope_scaling={"rope_type": "dynamic", "factor": 2.0})))
        for source in (good, parent):
            problem = self.refused(78, "set in [model]: layers = 2", "--from", source, text, "--model.layers=3")
            self.assertIn(f"{source} holds a model of another shape", problem)
        self.refused(78, "is at step 1, and the run ends at step 1", "--from", parent, "--with-optimizer", "--train.max_steps=1", text)

    def blend(self, second, *more):
        self.write_config({**TINY, "model.vocab": 400, "train.max_steps": 2, "data.source": '""'})
        self.config.write_text(self.config.read_text() + f"""
[[data.blend]]
name = "first"
source = "{self.text}"
weight = 1
[[data.blend]]
name = "second"
source = "{second}"
weight = 2
""")

    def test_a_later_source_of_a_blend_that_cannot_be_used_is_refused(self):
        empty, tokens = self.folder / "empty", self.folder / "tokens"
        empty.mkdir()
        tokens.mkdir()
        (tokens / "one.bin").write_bytes(self.data.read_bytes())
        count = len(self.data.read_bytes()) // 2
        good = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 2) + struct.pack("<2i", 1000, count - 1000) +
                struct.pack("<2q", 0, 2000) + struct.pack("<2q", 0, 2))
        wide = good[:17] + b"\5" + good[18:]
        gap = good.replace(struct.pack("<2q", 0, 2000), struct.pack("<2q", 8, 2000))
        for command in ("train", "prepare"):
            self.blend(empty)
            self.refused(65, "no text was found", command=command)
            self.blend(tokens)
            for index, says in ((good[:-3], "do not fit a file"), (wide, "4 (i32) and 8 (u16) are read"), (gap, "sequence 0 begins at byte 8")):
                (tokens / "one.idx").write_bytes(index)
                self.refused(65, says, command=command)
            (tokens / "one.idx").unlink()
            for mask, says in ((struct.pack("<QQ", count, 1), "one.mask"), (struct.pack("<QQQQ", count, 1, 9, 9), "is wrong")):
                (tokens / "one.mask").write_bytes(b"SSLMASK1" + mask)
                self.refused(65, says, command=command)
            (tokens / "one.mask").unlink()
            self.refused(78, "has no tokenizer", "--data.document_mask=true", command=command)
            self.refused(78, "data.document_end = 400 is beyond", "--data.document_mask=true", "--data.document_end=400", command=command)

    def test_logits_go_through_a_pipe(self):
        run, pipe = self.train("run", "--train.max_steps=1"), self.folder / "pipe"
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        self.addCleanup(reader.kill)
        subprocess.run([BIN / "simplescale-compute", "logits", run, "--data", self.data, "--samples", "1", "--out", pipe], check=True, timeout=60)
        self.assertTrue(reader.communicate(timeout=60)[0].startswith(b"\x93NUMPY"))
        self.assertTrue(pipe.is_fifo())

    def test_a_password_in_an_address_is_not_shown(self):
        for source in ("https://me:T0PSECRET@host/x.bin", "https://T0PSECRET@host"):
            done = subprocess.run([PROGRAM, "train", self.config, f"--run={self.folder / 'run'}", f"--data.source={source}"],
                                  capture_output=True, text=True, timeout=60)
            self.assertIn(done.returncode, (65, 78))
            self.assertNotIn("T0PSECRET", done.stdout + done.stderr)
            self.assertIn("host", done.stderr)

    def test_a_tokenizer_without_bos_and_eos_is_warned_of_or_refused(self):
        keys = [f"--data.source={self.text}", "--data.folder=trained"]
        self.command("prepare", self.config, *keys, "--tokenizer.kind=byte_bpe")
        trained = (self.folder / "trained/tokenizer.json").read_text()
        (self.folder / "bare.json").write_text(trained.replace("<|endoftext|>", "<|nothing|>"))
        keys = [keys[0], "--tokenizer.path=bare.json"]
        self.refused(78, "tokenizer.append_eos = true: the tokenizer has no EOS", *keys, "--tokenizer.append_eos=true", command="prepare")
        self.refused(78, "bare.json has no BOS", *keys, "--data.document_mask=true", command="prepare")
        self.command("prepare", self.config, *keys)
        self.assertEqual(self.stderr.count(f"warning: bare.json: nothing stands between the documents of {self.text}"), 1, self.stderr)
        (self.folder / "tokenizer.json").write_text(trained)
        for eos, warnings in (({"content": "<|im_end|>"}, 1), ("<|im_end|>", 1), ("<|endoftext|>", 0), (None, 0), ({}, 0), (7, 0)):
            (self.folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
            self.command("prepare", self.config, keys[0], "--tokenizer.path=tokenizer.json")
            self.assertEqual(self.stderr.count("warning: tokenizer_config.json names <|im_end|> as EOS"), warnings, self.stderr)
        (self.folder / "tokenizer_config.json").write_text("{}")
        (self.folder / "special_tokens_map.json").write_text('{"bos_token": "<|start|>"}')
        (self.folder / "generation_config.json").write_text('{"bos_token_id": 0, "eos_token_id": [7, 0]}')
        self.command("prepare", self.config, keys[0], "--tokenizer.path=tokenizer.json")
        self.assertIn("special_tokens_map.json names <|start|> as BOS", self.stderr)
        self.assertIn("generation_config.json names the token 7 as EOS", self.stderr)
        (self.folder / "two").mkdir()
        names = json.loads(trained)
        names["added_tokens"].append({**names["added_tokens"][0], "id": len(names["model"]["vocab"]), "content": "<|im_end|>"})
        (self.folder / "two/tokenizer.json").write_text(json.dumps(names))
        self.command("prepare", self.config, keys[0], "--tokenizer.path=two/tokenizer.json", "--data.folder=two/data", "--model.vocab=512")
        self.assertIn("<|endoftext|> is taken, and <|im_end|> could be it", self.stderr)

    def test_wrong_rows_of_tasks_are_refused_and_other_keys_named_once(self):
        tasks = self.folder / "questions.jsonl"
        row = {"prompt": "a", "choices": ["b", "c"], "answer": 0}
        keys = [f"--data.source={self.text}", f"--train.tasks={tasks}"]
        for wrong, says in (({"text": "t"}, "either a text or a question"), ({"delimiter": 5}, '"delimiter" must be a text'),
                            ({"task": ""}, '"task" must be a name'), ({"prompt": None, "promt": "a"}, "did you mean 'prompt'?")):
            tasks.write_text(json.dumps({**row, **wrong}) + "\n")
            self.refused(65, says, *keys)
        tasks.write_text("".join(json.dumps({**row, "id": i}) + "\n" for i in range(3)))
        self.train("run", *keys)
        self.assertEqual(self.stderr.count(f'warning: {tasks}: keys that are not read: "id"'), 1, self.stderr)

    def test_another_mixture_of_a_run_is_refused_before_its_texts_are_prepared_again(self):
        self.blend(self.data)
        run = self.train("run")
        shutil.rmtree(self.folder / "data")
        text = self.config.read_text()
        first, second = text[text.index("[[data.blend]]"):].split("[[data.blend]]")[1:]
        for other in (text.replace("weight = 2", "weight = 3"), text[:text.index("[[data.blend]]")] + f"[[data.blend]]{second}[[data.blend]]{first}"):
            self.config.write_text(other)
            self.command("train", self.config, f"--run={run}", "--train.max_steps=4", code=78)
            self.assertIn("data.blend: ", self.stderr)
            self.assertFalse((self.folder / "data").exists())
