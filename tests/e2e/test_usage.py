"""The command line: help, examples, completion, man page, an installed program, and options that nobody ignores."""

import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
import unittest

from common import BIN, PROGRAM, TINY, Case, events

SOURCES = pathlib.Path(__file__).resolve().parents[2]


def run(*words, **more):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60, **more)


def run_in(folder, words, stdout=subprocess.PIPE):
    return subprocess.run([PROGRAM, *map(str, words)], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=folder,
                          timeout=120)


class Help(Case):
    def commands(self, *before):
        """The commands that --help lists."""
        text = self.command(*before, "--help")
        after = text[text.index("Subcommands:"):].splitlines()[1:]
        return [line.split()[0] for line in after if line.startswith("  ") and line[2] != " "]

    def test_every_command_has_help_with_examples(self):
        names = [[name] for name in self.commands() if name not in ("simplescale", "help")]
        self.assertGreater(len(names), 15)
        names += [["config", name] for name in self.commands("config") if name in ("show", "validate", "explain")]
        for name in names:
            text = self.command("help", *name)
            self.assertEqual(text, self.command(*name, "--help"))
            self.assertIn("Examples:", text, name)
            for line in text[text.index("Examples:"):].splitlines()[1:]:
                self.assertRegex(line, rf"^  (simplescale {name[0]}|#)", text)
        self.command("help", "trian", code=64)
        self.assertIn("did you mean 'train'?", self.stderr)

    def test_the_man_page_names_every_command_and_has_no_error(self):
        page = self.folder / "simplescale.1"
        page.write_text(self.command("man"))
        for name in ("train", "config show", "generate", "sweep"):
            self.assertIn(f"simplescale {name}", page.read_text())
        if shutil.which("groff"):
            shown = run("groff", "-man", "-Tutf8", "-ww", page)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assertIn("simplescale export CHECKPOINT FOLDER", re.sub(".\b", "", shown.stdout))

    def complete(self, *words):
        """What bash offers for the last word."""
        script = self.folder / "completion.bash"
        script.write_text(self.command("completion", "bash"))
        quoted = " ".join(f"'{word}'" for word in ("simplescale", *words))
        shown = run("bash", "-c", f"compopt() {{ :; }}; . {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; "
                    "_simplescale; printf '%s\\n' \"${COMPREPLY[@]}\"")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        return shown.stdout.split()

    def test_bash_completes_commands_options_and_keys(self):
        self.assertEqual(self.complete("tr"), ["train", "trace"])
        self.assertEqual(self.complete("config", ""), ["show", "validate", "explain", "-h", "--help"])
        self.assertEqual(self.complete("logs", "runs/x", "--l"), ["--level"])
        self.assertEqual(self.complete("train", "x.toml", "--train.max_s"), ["--train.max_steps="])
        self.assertEqual(self.complete("config", "show", "x.toml", "--ch")[0], "--changed")
        self.assertEqual(self.complete("status", "runs/"), [])  # bash offers files

    def test_zsh_and_fish_accept_their_scripts(self):
        for shell in ("zsh", "fish"):
            script = self.folder / shell
            script.write_text(self.command("completion", shell))
            self.assertIn("max_steps=", script.read_text())
            if shutil.which(shell):
                self.assertEqual(run(shell, "-n", script).stderr, "")
        self.command("completion", "tcsh", code=64)


class Options(Case):
    def test_words_that_a_command_does_not_know_are_errors(self):
        for arguments, words in [(["train", self.config, "--max_steps=3"], ["unknown option --max_steps", "--train.max_steps"]),
                                 (["train", self.config, "--oversubscrib"], ["'--oversubscribe'"]),
                                 (["prepare", self.config, "more"], ["unexpected argument 'more'", "prepare --help"]),
                                 (["trace", "x", "--list", "-o", "f"], ["--list", "excludes"]),
                                 (["export", "x", "y", "--dtype", "int8"], ["--dtype", "bfloat16"]),
                                 (["plot", "x", "--smooth", "-1"], ["not in range 0 to 1000000000"]),
                                 (["report", "x", "-o", "x.pdf"], ["x.pdf", ".html"]),
                                 (["config", "explain", "train.lr"], ["unknown key train.lr; nearest known key: train.learning_rate"]),
                                 (["generate", "x", "--temperature", "nan"], ["--temperature: not a number"]),
                                 (["generate", "x", "--top-p=nan"], ["--top-p: not a number"]),
                                 (["logs", "x", "--level", "loud"], ["--level", "warning"])]:
            self.command(*arguments, code=64)
            self.assertEqual(len(self.stderr.splitlines()), 1, self.stderr)
            for word in words:
                self.assertIn(word, self.stderr)
        self.command("generate", "--stop", "a", "nowhere", code=65)  # the folder is no second stop string
        self.command("train", self.config, "--train.max_steps", code=78)
        self.assertIn("a value is missing: --train.max_steps=VALUE", self.stderr)
        self.command("train", self.config, "--train.max_steps=2", "--sweep.seeds=[1,2]", code=78)
        self.assertRegex(self.stderr, r"has a \[sweep\].* to train its runs: \S+ sweep \S+;")

    def test_a_key_is_explained(self):
        text = self.command("config", "explain", "train.warmup_iters")
        for words in ("micro-batches", "must be: an integer", "default: ", "in a run that exists: may change"):
            self.assertIn(words, text)
        self.assertIn("  checkpoint.keep = ", self.command("config", "explain", "checkpoint"))

    def test_a_folder_without_a_run_is_named(self):
        for command in ("status", "logs", "console", "verify", "trace"):
            self.command(command, "nope", code=65)
            self.assertEqual(self.stderr, "simplescale: no run in nope; `runs FOLDER` lists the runs of a folder\n")

    def test_config_show_changed_lists_what_differs_from_the_defaults(self):
        text = self.command("config", "show", self.config, "--changed", "--train.max_steps", "7", "--train.eps=1e-8")
        self.assertRegex(text, r"(?m)^train.max_steps +7 +command line$")
        self.assertNotIn("train.eps", text)
        self.assertNotIn("plan", text)
        order = self.command("config", "show", self.config, "--program", "--train.max_steps=1").splitlines()
        self.assertEqual((order[0].split()[0], order[-3:]), ("embed", ["vote", "update", "commit"]))

    def test_submit_with_dry_run_writes_nothing(self):
        run = self.folder / "run"
        self.assertIn("#SBATCH", self.command("submit", self.config, f"--run={run}", "--train.max_steps=2", "--dry-run"))
        self.assertFalse(run.exists())
        refuses = self.folder / "bin"
        refuses.mkdir()
        (refuses / "sbatch").write_text("#!/bin/sh\necho no such partition >&2\nexit 1\n")
        (refuses / "sbatch").chmod(0o755)
        failed = subprocess.run([PROGRAM, "submit", self.config, f"--run={run}", "--train.max_steps=2"], cwd=self.folder, capture_output=True,
                                text=True, timeout=60, env={**os.environ, "PATH": f"{refuses}:{os.environ['PATH']}"})
        self.assertEqual(failed.returncode, 78, failed.stderr)
        self.assertIn("no such partition", failed.stderr)
        self.assertFalse(run.exists())


class Run(Case):
    def webhook(self):
        """A server on this machine. Returns the list of the JSON documents that are posted to it, and its URL."""
        posted = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(lambda: (server.shutdown(), server.server_close()))
        return posted, f"http://127.0.0.1:{server.server_port}/incidents?token=x"

    @unittest.skipUnless(shutil.which("curl"), "SKIPPED: no curl")
    def test_a_run_from_a_config_in_another_folder_with_an_alert(self):
        """Paths in the config are relative to it. The incident at step 3 is posted to the user's URL."""
        (self.folder / "configs").mkdir()
        config = self.folder / "configs/here.toml"
        config.write_text(self.config.read_text().replace(str(self.data), "../tokens.bin"))
        notices, target = self.webhook()
        self.command("train", config, "--train.max_steps", "60", *self.layout(2, 1), f"--supervision.notify={target}",
                     '--inject.faults=[{ step = 3, kind = "kill_trainer", target = "n1.0" }]')
        run = self.folder / "runs/here"  # a default: relative to the working directory
        notice, = notices
        recovered, = events(run, "recovered")
        self.assertEqual({k: notice[k] for k in recovered}, recovered)
        self.assertEqual(notice["run"], str(run))

        levels = {line.split()[2] for line in self.command("logs", run, "--level", "warning").splitlines() if line[:2] == "20"}
        self.assertLessEqual(levels, {"warning", "error"})
        self.assertIn("info", self.command("logs", run, "--level", "info"))
        document = json.loads(self.command("status", run, "--json"))
        self.assertGreater(document["step_ms"], 0)
        self.assertGreater(document["step_time"], 0)
        self.assertEqual(document["remaining_s"], 0)
        self.command("export", run, self.folder / "model", "--dtype", "bf16")
        self.assertIn("bfloat16", (self.folder / "model/config.json").read_text())


class Output(Case):
    def test_every_command_whose_output_cannot_be_written_exits_74(self):
        """The disk behind stdout is full, or stdout is closed. In a table, so that a new command is not forgotten."""
        text = self.folder / "text.txt"
        text.write_text("\n".join(" ".join(f"{i * k * 2654435761 % 9973:x}" for k in range(3, 30)) for i in range(400)))
        self.write_config({**TINY, "data.source": f'"{text}"', "data.folder": f'"{self.folder}/prepared"', "tokenizer.kind": '"byte_bpe"',
                           "model.vocab": 300, "train.max_steps": 4})
        run = self.train("run", *self.layout(1, 1), "--train.max_steps=4", "--metrics.trace_steps=[2]")
        sweep = self.folder / "sweep.toml"
        sweep.write_text(self.config.read_text() + '[sweep]\nseeds = [1, 2]\n')
        number = iter(range(1000))
        new = lambda: self.folder / f"new-{next(number)}"
        calls = {
            "train": lambda: ["train", self.config, f"--run={run}", *self.layout(1, 1), "--train.max_steps=4", "--metrics.trace_steps=[2]"],
            "resume": lambda: ["resume", run], "submit": lambda: ["submit", self.config, f"--run={new()}", "--dry-run"],
            "prepare": lambda: ["prepare", self.config], "config show": lambda: ["config", "show", self.config],
            "config validate": lambda: ["config", "validate", self.config], "config explain": lambda: ["config", "explain", "train"],
            "digest": lambda: ["digest", run], "export": lambda: ["export", run, new()],
            "import": lambda: ["import", self.folder / "hf", new()], "verify": lambda: ["verify", run],
            "status": lambda: ["status", run], "console": lambda: ["console", run, "-c", "events"], "runs": lambda: ["runs", self.folder],
            "plot": lambda: ["plot", run, "-o", self.folder / "plot.svg"], "report": lambda: ["report", run, "-o", self.folder / "r.html"],
            "sweep": lambda: ["sweep", sweep, f"--run={new()}", "--dry-run"], "logs": lambda: ["logs", run],
            "trace": lambda: ["trace", run], "doctor": lambda: ["doctor"],
            "generate": lambda: ["generate", run, "--prompt=the", "--max-tokens=2"], "evaluate": lambda: ["evaluate", run],
            "help": lambda: ["help"], "completion": lambda: ["completion", "bash"], "man": lambda: ["man"],
        }
        self.command("export", run, self.folder / "hf")
        listed = [name for name in Help.commands(self) if name not in ("simplescale", "config")]
        self.assertEqual([name for name in listed if name not in calls], [])
        more = {"--version": lambda: ["--version"], "--help": lambda: ["--help"],
                "train a new run": lambda: ["train", self.config, f"--run={new()}", *self.layout(1, 1), "--train.max_steps=2"],
                "status --help": lambda: ["status", "--help"],
                "status --json": lambda: ["status", run, "--json"], "trace --list": lambda: ["trace", run, "--list"],
                "console help": lambda: ["console", run, "-c", "help"], "console status": lambda: ["console", run, "-c", "status"]}
        for name, call in {**calls, **more}.items():
            if name == "plot" and not shutil.which("gnuplot"):
                continue
            before = run_in(self.folder, call())
            if name == "doctor" and before.returncode == 3:  # this machine is not fit to train
                continue
            self.assertEqual(before.returncode, 0, f"{name}: {before.stdout}{before.stderr}")
            code = 74 if before.stdout else 0
            self.assertTrue(before.stdout or name in ("train", "resume", "prepare"), name)  # what they did before: on stderr
            with open("/dev/full", "w") as full:
                done = run_in(self.folder, call(), stdout=full)
            self.assertEqual(done.returncode, code, f"{name}: {done.stderr}")
            if code:
                self.assertRegex(done.stderr, "output could not be written|No space left on device|cannot print", name)
            closed = subprocess.run(["bash", "-c", '"$@" >&-', "bash", PROGRAM, *map(str, call())], stderr=subprocess.PIPE, text=True,
                                    stdin=subprocess.DEVNULL, cwd=self.folder, timeout=120)
            self.assertEqual(closed.returncode, code, f"{name} with a closed stdout: {closed.stderr}")
        self.assertIn("each sample exactly once", self.verify(run))  # nothing was written into the run's files


class Install(Case):
    def test_an_installed_program_works_from_any_folder(self):
        build = BIN.parent
        if not (build / "cmake_install.cmake").exists() or not shutil.which("cmake"):
            self.skipTest("SKIPPED: the programs do not lie in a build folder")
        prefix = self.folder / "prefix"
        done = run("cmake", "--install", build, "--prefix", prefix, "--component", "programs")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        program = prefix / "bin/simplescale"
        shown = run(program, "config", "show", self.config, "--train.max_steps", "3", cwd="/")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("train.max_steps", shown.stdout)
        compute = run(program, "evaluate", "/nowhere", cwd="/")  # simplescale-compute finds its libraries
        self.assertEqual(compute.returncode, 65, compute.stderr)
        self.assertIn("/nowhere", compute.stderr)
        for file, words in [("share/bash-completion/completions/simplescale", "complete -o default -F _simplescale"),
                            ("share/zsh/site-functions/_simplescale", "#compdef simplescale"),
                            ("share/fish/vendor_completions.d/simplescale.fish", "complete -c simplescale"),
                            ("share/man/man1/simplescale.1", ".TH SIMPLESCALE 1")]:
            self.assertIn(words, (prefix / file).read_text())
        self.assertEqual(sorted(p.name for p in prefix.iterdir()), ["bin", "lib", "share"])
