"""Another user of the same host, or of the same group, who may write where a run will be or is."""

import json
import os
import pathlib
import signal
import stat
import subprocess
import unittest

from common import BIN, PROGRAM, TINY, Case, last_step, leftovers

VICTIM, ATTACKER, TEAM = 2000, 3000, 2500
SLURM = {"SLURM_NTASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0", "SLURM_JOB_ID": "80", "SLURM_STEP_ID": "0",
         "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@unittest.skipUnless(os.geteuid() == 0, "only root can act as two users")
class TwoUsers(Case):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.home, self.shared = self.folder / "home", self.folder / "shared"
        self.home.mkdir()
        self.shared.mkdir()
        self.shared.chmod(0o1777)
        self.profile = self.home / ".bashrc"
        self.profile.write_text("mine\n")
        for path in (self.home, self.profile):
            os.chown(path, VICTIM, TEAM)
        self.pwned = self.shared / "pwned"
        self.run_folder = self.shared / "run"

    def victim(self, *words, program=PROGRAM, umask=0o022, cwd=None, env=None):
        return subprocess.run([program, *map(str, words)], user=VICTIM, group=TEAM, extra_groups=[], umask=umask, cwd=cwd or self.home,
                              capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(self.home), **(env or {})})

    def train(self, *words, **options):
        return self.victim("train", self.config, f"--run={self.run_folder}", *self.layout(1, 1), "--train.max_steps=2", *words, **options)

    def attackers(self, *paths):
        for path in paths:
            os.chown(path, ATTACKER, TEAM, follow_symlinks=False)

    def hostile_config(self, path):
        path.write_text(self.config.read_text().replace("[supervision]", f"[supervision]\nnotify = 'touch {self.pwned}'"))
        self.attackers(path)

    def hostile_run(self):
        """A run folder that its owner has opened to everybody."""
        run = self.run_folder
        for folder in (run, run / "control", run / "logs", run / "checkpoints"):
            folder.mkdir()
            folder.chmod(0o777)
        self.hostile_config(run / "config.toml")
        (run / "logs/n0.log").symlink_to(self.profile)
        self.attackers(run, *run.iterdir(), run / "logs/n0.log")
        return run

    def assert_refused(self, done, why="belongs to another user"):
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertIn(why, done.stdout + done.stderr)
        self.assertEqual(self.profile.read_text(), "mine\n")
        self.assertFalse(self.pwned.exists())


class Run(TwoUsers):
    def test_a_slurm_task_uses_no_folder_that_another_user_has_prepared(self):
        run = self.hostile_run()
        (run / "control/ready-80.0.0").touch()
        self.assert_refused(self.train(env=SLURM))

    def test_train_and_resume_write_nothing_into_a_folder_of_another_user(self):
        run = self.hostile_run()
        (run / "config.toml").unlink()
        before = {p: p.stat().st_mtime_ns for p in (run, run / "control", run / "checkpoints", run / "logs")}
        self.assert_refused(self.train())
        self.assert_refused(self.victim("resume", run))
        self.assertEqual({p: p.stat().st_mtime_ns for p in before}, before)

    def test_no_process_of_a_run_reads_or_writes_a_folder_of_another_user(self):
        run = self.hostile_run()
        (run / "config.toml").write_text("it = is read\n= and reported")
        for program, words in ((PROGRAM, ["agent", "--run", run, "--node", "0"]),
                               (PROGRAM, ["supervisor", "--run", run, "--node", "n0"]),
                               (BIN / "simplescale-compute", ["trainer", "--run", run, "--process", "n0/p0"])):
            self.assert_refused(self.victim(*words, program=program))
        self.assertEqual(list((run / "control").iterdir()), [])

    def test_no_run_is_made_writable_by_a_group_and_one_that_was_is_so_no_longer(self):
        run = self.run_folder
        done = self.train(umask=0)
        self.assertEqual(done.returncode, 0, done.stderr)
        wide = [str(p) for p in [run, *run.rglob("*")] if not p.is_symlink() and p.stat().st_mode & 0o022]
        self.assertEqual(wide, [])
        for path in (run, run / "logs", run / "checkpoints"):
            path.chmod(0o2775)
        done = self.victim("resume", run, "--train.max_steps=4", umask=0o002)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(last_step(run), 4)
        self.assertEqual([stat.S_IMODE(p.stat().st_mode) for p in (run, run / "logs", run / "checkpoints")], [0o2755] * 3)

    def test_a_config_that_a_group_may_have_written_runs_no_command(self):
        run = self.run_folder
        self.assertEqual(self.train().returncode, 0)
        run.chmod(0o775)  # as earlier versions made it with umask 002
        config, own = run / "config.toml", (run / "config.toml").read_text()
        config.unlink()
        config.write_text(own.replace('notify = ""', f"notify = 'touch {self.pwned}'"))
        self.attackers(config)
        self.assert_refused(self.victim("resume", run, "--train.max_steps=4"))
        self.assert_refused(self.victim("train", self.config, f"--run={run}", *self.layout(1, 1), "--train.max_steps=4"))
        config.write_text(own)
        os.chown(config, VICTIM, TEAM)
        config.chmod(0o664)
        self.assert_refused(self.victim("resume", run, "--train.max_steps=4"), "can be written by other users")
        config.chmod(0o644)
        self.assertEqual(self.victim("resume", run, "--train.max_steps=4").returncode, 0)

    def test_processes_that_hold_the_key_are_not_dumpable(self):
        """/proc shows what is private to such a process as root's."""
        run = self.run_folder
        process = subprocess.Popen([PROGRAM, "train", self.config, f"--run={run}", *self.layout(2, 1), "--train.max_steps=1000000"], user=VICTIM,
                                   group=TEAM, extra_groups=[], umask=0o022, cwd=self.home, env={**os.environ, "HOME": str(self.home)},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.wait_for(lambda: last_step(run) >= 3, "step 3")

        def owners(name):
            return {os.stat(f"/proc/{pid}/{name}").st_uid for pid in leftovers(run)}
        self.wait_for(lambda: owners("status") == {0}, "processes that have read the key")
        self.assertEqual({line.split()[1] for pid in leftovers(run) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                          if line.startswith("Uid:")}, {str(VICTIM)})
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0)

    def test_who_only_reads_may_read_the_run_of_another_user(self):
        self.assertEqual(self.train().returncode, 0)
        run = self.shared / "theirs"
        self.run_folder.rename(run)
        run.chmod(0o775)
        for path in [run, *run.rglob("*")]:
            os.chown(path, ATTACKER, TEAM, follow_symlinks=False)
        (run / "control").chmod(0o755)
        for words in (["status", run], ["runs", self.shared], ["report", run, "-o", "r.html"], ["verify", run], ["digest", run],
                      ["export", run, "exported"], ["logs", run], ["config", "show", run / "config.toml"]):
            done = self.victim(*words)
            self.assertEqual(done.returncode, 0, (words, done.stderr))
        self.assertEqual(stat.S_IMODE(run.stat().st_mode), 0o775)


class Folders(TwoUsers):
    """FILE-1, FILE-2: checkpoint.folder and data.folder of another user, who plants links under the names that the program will use."""

    def setUp(self):
        super().setUp()
        self.theirs = self.shared / "theirs"
        self.theirs.mkdir()
        self.attackers(self.theirs)
        text = self.folder / "text.txt"
        text.write_text("".join(f"the {i % 7} cats of house {i * 7919 % 1000} sleep {i % 3} times a day\n" for i in range(3000)))
        self.text = self.write_config({**TINY, "data.source": f'"{text}"', "data.folder": f'"{self.theirs}"', "model.vocab": 300,
                                       "tokenizer.kind": '"byte_bpe"'}, self.folder / "text.toml")

    def as_root(self, *words):
        return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120, cwd=self.folder)

    def plant_lock(self):
        """It says that `prepare` has written what is in the folder."""
        (self.theirs / ".lock").touch()
        self.attackers(self.theirs / ".lock")

    def plant(self, *names):
        for name in names:
            path = self.theirs / name
            path.parent.mkdir(exist_ok=True)
            path.symlink_to(self.profile)
            self.attackers(path)
            if path.parent != self.theirs:
                path.parent.chmod(0o777)
                self.attackers(path.parent)

    def assert_untouched(self):
        self.assertEqual(self.profile.read_text(), "mine\n")
        self.assertEqual(os.listdir(self.home), [".bashrc"])

    def test_no_checkpoint_goes_to_a_folder_of_another_user_unless_it_is_trusted(self):
        self.plant("tmp-00000002-1/shard-00000-of-00001.safetensors", "latest", "owner.part", ".tmp")
        (self.theirs / "tmp-00000002-2").symlink_to(self.home)
        (self.theirs / "tmp-delete-step-00000002").symlink_to(self.home)
        self.attackers(self.theirs / "tmp-00000002-2", self.theirs / "tmp-delete-step-00000002")
        where = f"--checkpoint.folder={self.theirs}"
        self.assert_refused(self.train(where))
        train = ["train", self.config, f"--run={self.run_folder}", *self.layout(1, 1), "--train.max_steps=2", where]
        self.assert_refused(self.as_root(*train))
        self.assertFalse(self.run_folder.exists())
        self.assert_untouched()
        done = self.as_root(*train, "--trust-folder")
        self.assert_untouched()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.readlink(self.theirs / "latest"), "step-00000002")

    def test_a_checkpoint_folder_that_others_may_write_is_refused(self):
        os.chown(self.theirs, VICTIM, TEAM)
        self.theirs.chmod(0o1777)
        self.assert_refused(self.train(f"--checkpoint.folder={self.theirs}"), "can be written by other users")
        self.theirs.chmod(0o755)
        link = self.shared / "link"
        link.symlink_to(self.theirs)
        self.attackers(link)
        self.assert_refused(self.train(f"--checkpoint.folder={link}"))
        self.assertEqual(self.train(f"--checkpoint.folder={link}", "--trust-folder").returncode, 0)

    def test_no_token_goes_to_a_folder_of_another_user_unless_it_is_trusted(self):
        names = ("train.bin.part", "validation.bin.part", "tokenizer.json.part", "manifest.json.part", "pieces/planted.part")
        self.theirs.chmod(0o777)
        self.assert_refused(self.victim("prepare", self.text))
        self.assert_refused(self.as_root("prepare", self.text))
        self.assertEqual(os.listdir(self.theirs), [])
        self.plant(*names)
        self.plant_lock()
        done = self.as_root("prepare", self.text, "--trust-folder")
        self.assert_untouched()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((self.theirs / "train.bin").is_symlink())
        self.assertGreater((self.theirs / "train.bin").stat().st_size, 10_000)

    def test_pieces_do_not_go_through_a_link_of_another_user(self):
        (self.theirs / "pieces").symlink_to(self.home)
        self.attackers(self.theirs / "pieces")
        self.plant_lock()
        done = self.as_root("prepare", self.text, "--trust-folder")
        self.assert_untouched()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("a link is in the way", done.stderr)

    def test_tokens_that_another_user_has_prepared_are_read(self):
        done = self.as_root("prepare", self.text, "--trust-folder")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.attackers(*self.theirs.iterdir())
        before = {p.name: p.stat().st_mtime_ns for p in self.theirs.iterdir()}
        done = self.victim("train", self.text, f"--run={self.run_folder}", *self.layout(1, 1), "--train.max_steps=2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({p.name: p.stat().st_mtime_ns for p in self.theirs.iterdir()}, before)


class Doctor(TwoUsers):
    TASKS = {**SLURM, "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURMD_NODENAME": "node1"}

    def doctor(self, *words, **options):
        """The first of two tasks; the other one never joins."""
        return self.victim("doctor", self.config, "--train.max_steps=5", "--cluster.join_timeout_ms=1000", *words, env=self.TASKS, **options)

    def assert_not_fit(self, done, why):
        self.assertIn(done.returncode, (3, 74, 78), done.stdout + done.stderr)
        self.assertIn(why, done.stderr)

    def test_doctor_makes_control_private_and_uses_no_run_of_another_user(self):
        run = self.run_folder
        (run / "control").mkdir(parents=True)
        (run / "control/kept").touch()
        for path in (run, run / "control"):
            os.chown(path, VICTIM, TEAM)
            path.chmod(0o775)
        self.assert_not_fit(self.doctor(f"--run={run}", umask=0), "did not join")
        self.assertEqual(stat.S_IMODE((run / "control").stat().st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(run.stat().st_mode), 0o755)
        self.attackers(run)
        self.assert_not_fit(self.doctor(f"--run={run}"), "belongs to another user")

    def test_doctor_does_not_join_a_folder_of_another_user(self):
        meeting = self.shared / ".simplescale-doctor-7.0.0"
        (meeting / "control").mkdir(parents=True)
        (meeting / "control/key").write_bytes(bytes(32))
        precious = self.home / "precious"
        precious.mkdir()
        (precious / "0").write_text("mine\n")
        for path in (precious, precious / "0"):
            os.chown(path, VICTIM, TEAM)
        for stage in ("here", "machine", "report"):
            (meeting / stage).symlink_to(precious)
        for path in (meeting, meeting / "control"):
            path.chmod(0o777)
        self.attackers(meeting, meeting / "control", meeting / "control/key")
        done = subprocess.run([PROGRAM, "doctor"], user=VICTIM, group=TEAM, extra_groups=[], cwd=self.shared, capture_output=True, text=True,
                              timeout=120, env={**os.environ, **self.TASKS, "SLURM_NTASKS": "2"})
        self.assertEqual((precious / "0").read_text() if (precious / "0").exists() else "removed", "mine\n")
        self.assertEqual(os.listdir(precious), ["0"])
        self.assert_not_fit(done, "belongs to another user")

    def test_documents_of_another_form_end_no_task(self):
        meeting = self.run_folder / "control/doctor-7.0.0"
        (meeting / "control").mkdir(parents=True)
        (meeting / "claimed").mkdir()
        (meeting / "control/key").write_bytes(bytes(32))
        (meeting / "control/key").chmod(0o600)
        failed = self.run_folder / "control/failed-80.0.0"
        for path in [self.run_folder, *self.run_folder.rglob("*")]:
            os.chown(path, VICTIM, TEAM)
        for code in ("0", None, [], 1e300):
            (meeting / "conclusion").write_text(json.dumps({"code": code}))
            self.assert_not_fit(self.doctor(f"--run={self.run_folder}"), "is damaged")
            failed.write_text(json.dumps({"code": code, "message": "x"}))
            done = self.train(env=SLURM)
            self.assertEqual(done.returncode, 75, done.stderr)
            self.assertIn("is damaged", done.stderr)
