"""SECRET-1: where the secrets of a configuration, and those of the environment, are while a run trains and afterwards."""

import os
import pathlib
import re
import stat
import subprocess

from common import PROGRAM, Case, last_step, leftovers, lines

SECRET, OTHER = "https://hooks.example/T0PSECRET", "https://hooks.example/0THERSECRET"
ENVIRONMENT = {"AWS_SECRET_ACCESS_KEY": "T0PSECRET-aws", "AWS_ACCESS_KEY_ID": "T0PSECRET-id", "WANDB_API_KEY": "T0PSECRET-wandb",
               "HF_TOKEN": "T0PSECRET-hf", "MY_HF_TOKEN2": "T0PSECRET", "DATABASE_URL": "postgres://u:T0PSECRET@h/d", "OPENAI_KEY": "T0PSECRET",
               "SLACK_WEBHOOK": "T0PSECRET", "PGPASSWORD": "T0PSECRET", "GH_PAT": "T0PSECRET",
               "NOTIFY_URL": "https://hooks.slack.com/services/T/B/T0PSECRET"}


class Secrets(Case):
    def words_of(self, pid, what):
        try:
            return pathlib.Path(f"/proc/{pid}/{what}").read_bytes().decode(errors="replace")
        except OSError:
            return ""  # it has ended

    def holders(self, run):
        """The files with a secret."""
        return [p for p in [*run.rglob("*")] if p.is_file() and not p.is_symlink() and re.search(b"T0PSECRET|0THERSECRET", p.read_bytes())]

    def assert_only_private_files_have_it(self, run):
        self.assertEqual(self.holders(run), [run / "control/secrets.toml"])
        self.assertEqual(stat.S_IMODE((run / "control/secrets.toml").stat().st_mode), 0o600)

    def test_a_notify_url_stands_in_a_private_file_and_nowhere_else(self):
        run = self.folder / "run"
        train = [PROGRAM, "train", self.config, f"--run={run}", *self.layout(2, 1), "--train.max_steps=1000000", "--metrics.wandb=true",
                 f"--supervision.notify={SECRET}"]
        process = subprocess.Popen(train, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **ENVIRONMENT})
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        pids = [pid for pid in leftovers(run) if pid != str(process.pid)]
        self.assertGreater(len(pids), 4)
        for what in ("cmdline", "environ"):
            self.assertEqual([self.words_of(pid, "cmdline") for pid in pids if "T0PSECRET" in self.words_of(pid, what)], [], what)
        process.terminate()
        said = process.communicate(timeout=60)[0]
        done = subprocess.run([PROGRAM, "resume", run, "--train.max_steps=2000000", f"--supervision.notify={OTHER}", "--cluster.trainers_per_node=x"],
                              capture_output=True, text=True, timeout=60)
        said += done.stdout + done.stderr
        steps = last_step(run)
        for words in (["resume", run, f"--train.max_steps={steps + 5}", f"--supervision.notify={OTHER}"], ["resume", run]):
            done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            said += done.stdout + done.stderr
        self.assertIn('changed: supervision.notify was (secret) and is now another (secret)', said)
        self.assert_only_private_files_have_it(run)
        self.assertIn("0THERSECRET", (run / "control/secrets.toml").read_text())
        said += self.command("config", "show", run / "config.toml")
        said += self.command("config", "show", run / "config.toml", "--changed")
        said += self.command("status", run) + self.command("console", run, "-c", "events")
        self.command("report", run, "-o", self.folder / "report.html")
        said += (self.folder / "report.html").read_text()
        self.assertNotRegex(said, "T0PSECRET|0THERSECRET")
        changes = [e["reason"] for e in lines(run / "events.jsonl") if e.get("subject") == "supervision.notify"]
        self.assertTrue(all("(secret)" in reason for reason in changes), changes)

    def test_no_error_shows_a_secret(self):
        for wrong in (f"--supervision.notify=['{SECRET}']", f"--supervision.notify='{SECRET}", f"--supervision.notify=\"{SECRET}"):
            done = subprocess.run([PROGRAM, "config", "validate", self.config, wrong], capture_output=True, text=True, timeout=60)
            self.assertNotIn("T0PSECRET", done.stdout + done.stderr, wrong)
        bad = self.folder / "bad.toml"
        bad.write_text(self.config.read_text().replace("[supervision]", f'[supervision]\nnotify = ["{SECRET}"]'))
        done = subprocess.run([PROGRAM, "config", "validate", bad], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 78)
        self.assertNotIn("T0PSECRET", done.stdout + done.stderr)
        bad.write_text(self.config.read_text() + f'[sweep.keys]\n"supervision.notify" = ["{SECRET}", "{OTHER}"]\n')
        done = subprocess.run([PROGRAM, "sweep", bad, "--dry-run"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 78)
        self.assertNotRegex(done.stdout + done.stderr, "T0PSECRET|0THERSECRET")

    def test_a_command_gets_the_notice_and_is_on_no_command_line(self):
        told = self.folder / "told"
        command = f'tr "\\0" " " < /proc/$$/cmdline > {told}.argv; env > {told}.env; cat > {told}; echo T0PSECRET-word >&2; exit 3'
        run = self.folder / "run"
        done = subprocess.run([PROGRAM, "train", self.config, f"--run={run}", "--train.max_steps=60", *self.layout(2, 1),
                               f"--supervision.notify={command}", '--inject.faults=[{ step = 3, kind = "kill_trainer", target = "n1.0" }]'],
                              capture_output=True, text=True, timeout=180, env={**os.environ, **ENVIRONMENT})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"recovered"', told.read_text())
        self.assertNotIn("T0PSECRET", pathlib.Path(f"{told}.argv").read_text())
        self.assertIn("T0PSECRET-aws", pathlib.Path(f"{told}.env").read_text())  # the user's command has the user's environment
        self.assertIn("ended with exit code 3", "".join(p.read_text() for p in (run / "logs").glob("*.log")))
        self.assert_only_private_files_have_it(run)

    def test_a_sweep_gives_its_runs_the_secret_on_no_command_line(self):
        sweep = self.folder / "sweep"
        self.config.write_text(self.config.read_text() + "[sweep]\nseeds = [1, 2]\n")
        process = subprocess.Popen([PROGRAM, "sweep", self.config, f"--run={sweep}", "--train.max_steps=100000", *self.layout(1, 1),
                                    f"--supervision.notify={SECRET}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        run, = self.wait_for(lambda: [p.parent for p in sweep.glob("*/metrics.jsonl") if last_step(p.parent) >= 3], "step 3")
        pids = [pid for pid in leftovers(run) if pid != str(process.pid)]
        self.assertEqual([self.words_of(pid, "cmdline") for pid in pids if "T0PSECRET" in self.words_of(pid, "cmdline")], [])
        process.terminate()
        process.wait(60)
        self.assertEqual(self.holders(sweep), [run / "control/secrets.toml"])
        self.assertIn(SECRET, (run / "control/secrets.toml").read_text())
