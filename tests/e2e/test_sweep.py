"""Sweeps: every run of a grid is trained, an interrupted sweep continues, and a sweep ends with a table and a plot."""

import json
import os
import re
import signal
import subprocess

from common import PROGRAM, TINY, Case, last_step, lines

SWEEP = """
[sweep]
seeds = [1, 2]
[sweep.keys]
train.learning_rate = [1e-3, 4e-3]
"""


class Sweep(Case):
    def setUp(self):
        super().setUp()
        self.write_config({**TINY, "train.max_steps": 600, "checkpoint.folder": '"kept"'})
        self.config.write_text(self.config.read_text() + SWEEP)
        self.sweep = self.folder / "sweep"

    def runs(self):
        return sorted(p.parent for p in self.sweep.glob("*/config.toml"))

    def test_an_interrupted_sweep_continues_and_ends_with_a_table_and_a_plot(self):
        process = subprocess.Popen([PROGRAM, "sweep", self.config, f"--run={self.sweep}"], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        second = self.sweep / "001-learning_rate-0.001-seed-2"
        self.wait_for(lambda: last_step(second) >= 5, "the second run's step 5")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("continues from here", said)
        self.assertEqual(len(self.runs()), 2)
        self.assertLess(last_step(second), 600)
        first = self.sweep / "000-learning_rate-0.001-seed-1"
        done = (first / "metrics.jsonl").stat().st_mtime_ns

        said = self.command("sweep", self.config, f"--run={self.sweep}", timeout=300)
        self.assertIn("000-learning_rate-0.001-seed-1: finished already", said)
        self.assertIn("001-learning_rate-0.001-seed-2: continues", said)
        self.assertEqual((first / "metrics.jsonl").stat().st_mtime_ns, done)
        self.assertEqual([r.name for r in self.runs()], ["000-learning_rate-0.001-seed-1", "001-learning_rate-0.001-seed-2",
                                                         "002-learning_rate-0.004-seed-1", "003-learning_rate-0.004-seed-2"])
        for run in self.runs():
            self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, 601)), run.name)
        self.assertEqual(sorted(p.name for p in (self.folder / "kept").iterdir()), [r.name for r in self.runs()])
        # The interrupted run has the bits of a run without interruption.
        alone = self.train("alone", "--train.learning_rate=1e-3", "--run.seed=2", "--sweep.keys={}", "--sweep.seeds=[]")
        self.assertEqual(self.digest(second), self.digest(alone))
        self.assertEqual(len({self.digest(run) for run in self.runs()}), 4)

        table = json.loads((self.sweep / "summary.json").read_text())
        self.assertEqual([(r["state"], r["step"]) for r in table], [("finished", 600)] * 4)
        self.assertEqual(table[1]["loss"], lines(second / "metrics.jsonl")[-1]["loss"])
        text = (self.sweep / "summary.txt").read_text().splitlines()
        self.assertEqual(len(text), 5)
        self.assertEqual(text[0].split()[:4], ["run", "learning_rate", "seed", "state"])
        self.assertEqual([row[:2] for row in text], ["  ", "* ", "  ", "  ", "  "])
        best = min(table, key=lambda r: r["val_loss"])
        self.assertEqual((text[1].split()[1], best["best"]), (best["name"], True))
        self.assertIn(second.name, (self.sweep / "summary.svg").read_text())
        self.assertIn("600/600", self.command("runs", self.sweep))

        # Another sweep in the same folder is refused.
        self.command("sweep", self.config, f"--run={self.sweep}", "--sweep.seeds=[1,2,3]", code=78)
        self.assertIn("sweep.seeds was [1, 2] and is now [1, 2, 3]", self.stderr)

    def test_an_impossible_run_is_refused_before_any_run_starts(self):
        self.command("sweep", self.config, f"--run={self.sweep}", '--sweep.keys={"model.heads" = [4, 5]}', code=78)
        self.assertRegex(self.stderr, r"^simplescale: .*heads")
        self.assertFalse(self.sweep.exists())

    def test_submit_creates_a_job_array_with_one_element_per_run(self):
        said = self.command("sweep", self.config, f"--run={self.sweep}", "--submit", "--dry-run")
        self.assertIn("#SBATCH --array=0-3", said)
        self.assertEqual(said.count("#SBATCH --output="), 1)
        self.assertEqual(len(re.findall(r"^'/.*seed-\d'$", said, re.MULTILINE)), 4)
        self.assertFalse(self.sweep.exists())
        (self.folder / "bin").mkdir()
        sbatch = self.folder / "bin/sbatch"
        sbatch.write_text(f"#!/bin/sh\ncat > {self.folder}/submitted\necho 17\n")
        sbatch.chmod(0o755)
        path = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        submitted = self.command("sweep", self.config, f"--run={self.sweep}", "--submit", env=path)
        self.assertIn("submitted as job array 17", submitted)
        self.assertTrue(submitted.startswith(said))
        self.assertEqual((self.folder / "submitted").read_text(), (self.sweep / "submit.sh").read_text())
        for script in [self.sweep / "submit.sh", *self.sweep.glob("*/control/submit.sh")]:
            self.assertEqual(subprocess.run(["bash", "-n", script]).returncode, 0)
        self.assertEqual(len(list(self.sweep.glob("*/control/submit.toml"))), 4)

    def test_a_job_array_executes_no_script_that_other_users_can_change(self):
        (self.folder / "bin").mkdir()
        srun = f"#!/bin/sh\ntouch {self.folder}/trained\n"
        for name, text in (("sbatch", "#!/bin/sh\necho 17\n"), ("srun", srun), ("scontrol", "#!/bin/sh\nexit 1\n")):
            (self.folder / "bin" / name).write_text(text)
            (self.folder / "bin" / name).chmod(0o755)
        path = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        self.command("sweep", self.config, f"--run={self.sweep}", "--submit", env=path)

        def element(number):
            return subprocess.run(["bash", self.sweep / "submit.sh"], timeout=60, cwd=self.folder, env={
                **os.environ, **path, "SLURM_ARRAY_TASK_ID": str(number), "SLURM_JOB_ID": "17"}).returncode

        element(0)
        self.assertTrue((self.folder / "trained").exists())
        for number, run in enumerate(sorted(p for p in self.sweep.glob("*seed*") if p.is_dir())):
            script = run / "control/submit.sh"
            script.write_text(f"touch {self.folder}/attacked\n")
            if number == 0:
                (run / "control").chmod(0o777)
            elif number == 1:
                script.rename(run / "planted.sh")
                script.symlink_to(run / "planted.sh")
            elif os.geteuid() == 0 and number == 2:
                os.chown(script, 65534, 65534)
            elif os.geteuid() == 0 and number == 3:
                os.chown(run / "control", 65534, 65534)
            else:
                continue
            self.assertEqual(element(number), 65)
            self.assertFalse((self.folder / "attacked").exists())

    def test_a_dry_run_lists_the_runs_and_writes_nothing(self):
        said = self.command("sweep", self.config, f"--run={self.sweep}", "--dry-run").splitlines()
        self.assertEqual(len(said), 4)
        self.assertEqual(said[1], "[2/4] 001-learning_rate-0.001-seed-2: would start, train.learning_rate = 0.001, run.seed = 2")
        self.assertFalse(self.sweep.exists())
        self.command("sweep", self.config, f"--run={self.sweep}", "--dry-run", "--summary", code=64)
