"""What `train` prints without a terminal: the results go to stdout, the rest to stderr."""

import os
import pty
import re
import select
import subprocess

from common import PROGRAM, Case, lines

STEP = (r"step \d+/40: loss \d+\.\d{4}, learning rate [\d.e-]+, gradient norm [\d.e-]+, \d+ tokens/s, "
        r"(\d+ h \d+ min|\d+ min \d+ s|[\d.]+ s) left")


class Lines(Case):
    def test_steps_and_validations_are_on_stdout(self):
        run = self.folder / "run"
        said = self.command("train", self.config, f"--run={run}", "--train.max_steps=40", "--train.validation_every_steps=20")
        steps = [line for line in said.splitlines() if line.startswith("step ") and "/" in line]
        self.assertGreaterEqual(len(steps), 20, said)
        for line in steps:
            self.assertRegex(line, f"^{STEP}$")
        row = lines(run / "metrics.jsonl")[39]
        shown = f"step 40/40: loss {row['loss']:.4f}, learning rate {row['lr']:.3g}, gradient norm {row['grad_norm']:.3g}, "
        self.assertTrue(any(line.startswith(shown) for line in steps), steps[-1])
        self.assertIn(f"step 40: validation loss {row['val_loss']:.4f}\n", said)
        self.assertNotIn("iter", said)
        self.assertNotIn("step 40/40", self.stderr)
        self.assertIn("parameters", self.stderr)
        paper = self.command("train", self.config, f"--run={self.folder}/paper", "--train.max_steps=2", "--metrics.iterations=true",
                             "--train.global_batch_size=4")
        self.assertRegex(paper, r"iter 8 step 2/2: loss [\d.]+, iter time [\d.]+ ms, learning rate")

    def on_terminal(self, command):
        """Runs a shell command on a terminal. Returns what it showed, and its exit code."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execv("/bin/bash", ["bash", "-o", "pipefail", "-c", command])
        shown = b""
        while True:
            try:
                if not select.select([terminal], [], [], 120)[0]:
                    break
                shown += os.read(terminal, 65536)
            except OSError:  # it has ended
                break
        os.close(terminal)
        return shown.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_tee_keeps_the_lines_and_no_bar_disturbs_them(self):
        train = f"{PROGRAM} train {self.config} --train.max_steps=40"
        shown, code = self.on_terminal(f"{train} --run=teed | tee log")
        self.assertEqual(code, 0, shown)
        kept = (self.folder / "log").read_text()
        self.assertGreaterEqual(len(re.findall(f"(?m)^{STEP}$", kept)), 20, kept)
        self.assertNotIn("\r\033", shown)
        self.assertIn("step 40/40", shown)
        # A terminal alone has the bar; a file keeps the lines beside it.
        shown, code = self.on_terminal(f"{train} --run=bar")
        self.assertEqual(code, 0, shown)
        self.assertIn("\r\033[K", shown)
        self.assertNotIn("learning rate", shown)
        shown, code = self.on_terminal(f"{train} --run=file >out")
        self.assertEqual(code, 0, shown)
        self.assertIn("\r\033[K", shown)
        self.assertRegex((self.folder / "out").read_text(), f"(?m)^{STEP}$")

    def test_the_run_goes_on_without_its_reader(self):
        run = self.folder / "run"
        subprocess.run(f"{PROGRAM} train {self.config} --run={run} --train.max_steps=60 | head -n 1", shell=True, cwd=self.folder,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        self.assertEqual(lines(run / "metrics.jsonl")[-1]["step"], 60)
