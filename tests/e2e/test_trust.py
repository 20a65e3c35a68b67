"""Other users of a host: what they can do to a run, its folder and its page."""

import fcntl
import json
import os
import resource
import shutil
import stat
import subprocess
from pathlib import Path

from common import PROGRAM, Case, last_step, leftovers
from page_fixture import large_run

NOBODY = 65534
ROOT = os.geteuid() == 0


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


class RunFolder(Case):
    def train_with_umask(self, name, umask):
        run = self.folder / name
        before = os.umask(umask)
        try:
            self.command("train", self.config, f"--run={run}", *self.layout(2, 1), "--train.max_steps=4",
                         "--checkpoint.disk_every_steps=2")
        finally:
            os.umask(before)
        return run

    def test_no_file_is_wider_than_the_umask_and_control_is_private_with_any(self):
        run = self.train_with_umask("narrow", 0o077)
        self.assertEqual([p for p in [run, *run.rglob("*")] if mode(p) & 0o077 and not p.is_symlink()], [])
        run = self.train_with_umask("wide", 0)
        self.assertEqual(mode(run / "control") & 0o777, 0o700)
        self.assertEqual([p for p in [run, *run.rglob("*")] if mode(p) & 0o022 and not p.is_symlink()], [])

    def test_a_key_of_another_user_or_that_others_may_write_is_refused(self):
        """The console tries for 10 s, of all runs at once."""
        consoles = {}
        for says in ("can be written by other users", *(["belongs to another user"] if ROOT else [])):
            run = self.folder / says.partition(" ")[0]
            (run / "control").mkdir(parents=True)
            shutil.copy(self.config, run / "config.toml")
            (run / "control/supervisor.json").write_text('{"term": 1, "address": "00", "instance": "i"}')
            key = run / "control/key"
            key.write_bytes(bytes(32))
            lock = (run / "control/lock").open("w")
            self.addCleanup(lock.close)
            fcntl.flock(lock, fcntl.LOCK_EX)  # as if a launcher lived
            key.chmod(0o666 if "written" in says else 0o600)
            if "belongs" in says:
                os.chown(key, NOBODY, NOBODY)
            consoles[says] = subprocess.Popen([PROGRAM, "console", run, "-c", "pause"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for says, console in consoles.items():
            self.assertIn(says, console.communicate(timeout=60)[0])
            self.assertNotEqual(console.returncode, 0)

    def test_a_run_folder_of_another_user_is_refused_before_anything_is_written(self):
        if not ROOT:
            self.skipTest("only root can make files of another user")
        run = self.folder / "run"
        (run / "control").mkdir(parents=True)
        os.chown(run / "control", NOBODY, NOBODY)
        done = subprocess.run([PROGRAM, "train", self.config, f"--run={run}", *self.layout(1, 1), "--train.max_steps=2"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 78)
        self.assertIn("belongs to another user", done.stderr)
        self.assertEqual(list((run / "control").iterdir()), [])


def listening(pids):
    """(process name, port) of each TCP socket on which one of the processes listens."""
    ports = {}
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    found = set()
    for pid in pids:
        try:
            sockets = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue  # it has ended
        found |= {(words[1], ports[s[8:-1]]) for s in sockets if s.startswith("socket:[") and s[8:-1] in ports}
    return found


class Network(Case):
    def assert_only_the_page_listens(self, run):
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        pids = leftovers(run)
        self.assertGreater(len(pids), 6)  # agents, trainers, supervisor, standby
        self.assertEqual([name for name, _ in listening(pids) if name != "http"], [])
        self.assertIn("network: not used", self.command("status", run))

    def test_a_run_on_one_host_listens_on_no_tcp_port_but_the_page(self):
        run, process = self.start("run", *self.layout(2, 2), "--train.max_steps=1000000")
        self.assert_only_the_page_listens(run)
        process.terminate()
        process.communicate(timeout=60)

    def test_neither_does_a_slurm_job_on_one_host(self):
        run = self.folder / "job"
        environment = {**os.environ, "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0",
                       "SLURM_JOB_ID": "79", "SLURM_STEP_ID": "0"}
        command = [PROGRAM, "train", str(self.config), f"--run={run}", *self.layout(2, 2), "--train.max_steps=1000000"]
        tasks = [subprocess.Popen(command, cwd=self.folder, env={**environment, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)},
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for i in (0, 1)]
        for task in tasks:
            self.addCleanup(lambda t=task: t.poll() is None and t.kill())
        self.assert_only_the_page_listens(run)
        for task in tasks:
            task.terminate()
        self.assertEqual([t.wait(60) for t in tasks], [75, 75])


class GpuNetwork(Case):
    def test_gpus_of_two_hosts_need_every_host_on_each_trusted_network_that_is_named(self):
        """Two tasks on two hosts, as srun describes them to the first."""
        environment = {**os.environ, "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "0",
                       "SLURM_JOB_ID": "80", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
        done = subprocess.run([PROGRAM, "train", self.config, f"--run={self.folder / 'run'}", *self.layout(2, 1),
                               "--train.max_steps=2", "--cluster.device=cuda", "--transport.trusted_networks=198.51.100.0/24"],
                              env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("this host is not on 198.51.100.0/24 of transport.trusted_networks (198.51.100.0/24)", done.stderr)
        self.assertIn("name only networks that every host is on, or none", done.stderr)
        self.assertFalse((self.folder / "run/control").exists())


def few_bytes():
    """Called in a child process: what needs more memory than any command should ends there."""
    resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))


class Terminal(Case):
    HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\x85\r\x08\x7f\x00end"

    def test_no_command_lets_a_log_or_a_record_control_the_terminal(self):
        run = large_run(self.folder / "run", nodes=2, trainers=1, group_nodes=1, steps=50)
        document = json.loads((run / "control/status.json").read_text())
        document = self.spoiled(document)
        (run / "control/status.json").write_text(json.dumps(document))
        with (run / "events.jsonl").open("a") as events:
            for event in list(map(json.loads, (run / "events.jsonl").read_text().splitlines()))[-20:]:
                events.write(json.dumps(self.spoiled(event)) + "\n")
        (run / "logs").mkdir(exist_ok=True)
        with (run / "logs/n0.log").open("ab") as log:
            for text in (self.HOSTILE.encode(), self.HOSTILE.encode("latin-1"), b"\xe2\x9b\x1b[H"):
                log.write(b"2026-11-21T06:48:27.123 n0 error " + text + b"\n" + text + b"\n")
        shown = b""
        for words in (["status", run], ["logs", run], ["logs", run, "n0", "--level", "error"], ["runs", self.folder],
                      *(["console", run, "-c", what] for what in ("status", "tree", "nodes", "events", "why", "why 1"))):
            done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=60)
            for text in (done.stdout, done.stderr):
                self.assertNotRegex(text, rb"[\x00-\x08\x0b-\x1f\x7f]", words)
                self.assertNotRegex(text.decode(errors="replace"), "[\x80-\x9f]", words)
                self.assertNotRegex(text, rb"(?<![\x80-\xff])[\x80-\x9f]", words)
                shown += text
        self.assertIn(b"?]0;title??[2J", shown)

    def test_no_command_is_ended_by_deep_json_in_a_folder_of_somebody_else(self):
        """Values are copied and printed recursively: 400,000 levels overflowed the stack."""
        deep = "[" * 400_000 + "]" * 400_000
        run = large_run(self.folder / "run", nodes=2, trainers=1, group_nodes=1, steps=50)
        for file in ("events.jsonl", "metrics.jsonl", "health.jsonl", "control/status.json", "control/supervisor.json", "control/end.json"):
            path = run / file
            text = path.read_text().rstrip() if path.exists() else '{"a": 1}'
            path.write_text("\n".join(f'{line[:-1]}, "deep": {deep}, "actions": {deep}}}' for line in text.splitlines()) + "\n")
        for words in (["status", run], ["status", run, "--json"], ["logs", run], ["runs", self.folder], ["report", run], ["trace", run],
                      *(["console", run, "-c", what] for what in ("status", "tree", "events", "why", "why 1"))):
            done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=60)
            self.assertIn(done.returncode, range(128), words)

    def test_no_command_waits_for_a_pipe_or_reads_a_device_in_a_folder_of_somebody_else(self):
        run = large_run(self.folder / "run", nodes=2, trainers=1, group_nodes=1, steps=50)
        (run / "logs").mkdir(exist_ok=True)
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
            for file in ("events.jsonl", "metrics.jsonl", "ledger.jsonl", "config.toml", "control/status.json", "control/lock", "logs/n0.log"):
                (run / file).unlink(missing_ok=True)
                make(run / file)
            for words in (["status", run], ["logs", run], ["runs", self.folder], ["verify", run], ["digest", run], ["plot", run], ["trace", run],
                          *(["console", run, "-c", what] for what in ("events", "why"))):
                done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=60)
                self.assertIn(done.returncode, range(128), words)

    def assert_ends(self, words):
        """The command neither crashes nor hangs, nor needs much memory."""
        done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=60, preexec_fn=few_bytes)
        self.assertIn(done.returncode, set(range(128)) - {70}, (words, done.stderr[-300:]))

    def test_no_command_is_ended_by_a_deep_config_in_a_folder_of_somebody_else(self):
        """Nested tables are freed recursively: 500,000 levels overflowed the stack."""
        run = large_run(self.folder / "run", nodes=2, trainers=1, group_nodes=1, steps=50)
        deep = "a." * 500_000 + "a"
        for text in (f"{deep} = 1\n", f"[{deep}]\nb = 1\n", f"v = {{ {deep} = 1 }}\n"):
            (run / "config.toml").write_text(text)
            for words in (["status", run], ["runs", self.folder], ["verify", run], ["digest", run], ["plot", run, "-o", self.folder / "p.svg"],
                          ["console", run, "-c", "why"], ["config", "validate", run / "config.toml"]):
                self.assert_ends(words)

    def test_no_command_is_ended_by_large_values_in_a_folder_of_somebody_else(self):
        """A regular expression recursed once per character, long lines were kept, and JSON needs 20 times its size."""
        run = large_run(self.folder / "run", nodes=2, trainers=1, group_nodes=1, steps=50)
        commands = (["report", run, "-o", self.folder / "r.html"], ["status", run], ["runs", self.folder])
        (run / "config.toml").write_text(f'[supervision]\nnotify = "{"a" * 200_000}"\n' + "\n" * 200_000)
        for words in commands:
            self.assert_ends(words)
        self.assertNotIn("aaaa", (self.folder / "r.html").read_text())
        with (run / "metrics.jsonl").open("r+b") as metrics:
            for line in range(50):
                metrics.seek((15 << 20) - 1, os.SEEK_CUR)
                metrics.write(b"\n")
        (run / "control/status.json").write_text("[" + "[]," * 12_000_000 + "[]]")
        for words in commands:
            self.assert_ends(words)

    def test_no_command_reads_a_huge_file_into_memory_in_a_folder_of_somebody_else(self):
        """A file with a hole of 1 TB takes no space on the disk."""
        run = large_run(self.folder / "run", nodes=2, trainers=1, group_nodes=1, steps=50)
        (run / "traces/t").mkdir(parents=True)
        for file in ("events.jsonl", "metrics.jsonl", "ledger.jsonl", "health.jsonl", "config.toml", "control/status.json", "control/key",
                     "control/http.json", "control/supervisor.json", "control/manifest.json", "control/end.json", "traces/t/n0.jsonl",
                     "checkpoints/step-00000000/manifest.json"):
            with (run / file).open("ab") as whole:
                whole.truncate(1 << 40)
        for words in (["status", run], ["runs", self.folder], ["verify", run], ["digest", run], ["plot", run, "-o", self.folder / "p.svg"], ["trace", run],
                      ["report", run, "-o", self.folder / "r.html"], *(["console", run, "-c", what] for what in ("status", "events", "why"))):
            self.assert_ends(words)

    OTHER_KINDS = ("text", 7, -1.5, 1e300, 2**63, True, None, [], [[1], "a"], {}, {"a": {"b": 1}})

    def spoiled_records(self, record):
        """The record without each of its members, and with values of another kind in each."""
        for key in record:
            yield {k: v for k, v in record.items() if k != key}
            for value in self.OTHER_KINDS:
                yield record | {key: value}

    def test_no_command_is_ended_by_values_of_another_kind_in_a_folder_of_somebody_else(self):
        run = large_run(self.folder / "run", nodes=2, trainers=1, group_nodes=1, steps=4)
        for file in ("events.jsonl", "metrics.jsonl"):
            kinds = {record.get("kind"): record for record in map(json.loads, (run / file).read_text().splitlines())}
            with (run / file).open("a") as records:
                for record in kinds.values():
                    records.writelines(json.dumps(spoiled) + "\n" for spoiled in self.spoiled_records(record))
        commands = (["status", run], ["runs", self.folder], ["report", run, "-o", self.folder / "r.html"], ["verify", run],
                    ["plot", run, "-o", self.folder / "p.svg"], *(["console", run, "-c", what] for what in ("tree", "events", "why", "why 1")))
        for words in commands:
            self.assert_ends(words)
        document = json.loads((run / "control/status.json").read_text())
        for key in document:
            for value in ("text", 7, [[1], "a"], {"a": {"b": 1}}):
                (run / "control/status.json").write_text(json.dumps(document | {key: value}))
                self.assert_ends(["status", run])

    def test_no_record_ends_the_view_of_a_run_that_somebody_else_trains(self):
        """{"kind":"recovered"} without an incident ended it, and so did a text as a step."""
        run = self.folder / "run"
        (run / "control").mkdir(parents=True)
        config = self.config.read_text().replace("[train]", "[train]\nmax_steps = 100", 1)
        (run / "config.toml").write_text(config.replace("[data]", f'[data]\nfolder = "{self.folder}/data"', 1))
        (run / "control/instance").write_text("i\n")
        step = {"time": 1, "step": 1, "iter": 1, "loss": 2.5, "step_ms": 3.0, "tokens_per_second": 9.0, "remaining_s": 4.0, "mfu": 0.5}
        (run / "metrics.jsonl").write_text(json.dumps(step) + "\n")
        (run / "events.jsonl").write_text("")
        lock = (run / "control/lock").open("w")
        self.addCleanup(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if a launcher lived
        shown = self.folder / "shown"
        with shown.open("w") as output:
            view = subprocess.Popen([PROGRAM, "resume", run], stdout=output, stderr=output, preexec_fn=few_bytes)
        self.addCleanup(lambda: view.poll() is None and view.kill())
        self.wait_for(lambda: view.poll() is not None or "attached to this run" in shown.read_text(), "the attachment")
        recovered = {"kind": "recovered", "incident": 1, "sentence": "all is well", "reason": "r"}
        validated = {"kind": "validated", "step": 1, "val_loss": 2.5, "val_losses": {"a": 1.5}, "tasks": {"t": {"acc": 0.5}}}
        failed = {"kind": "checkpoint_failed", "subject": "step-00000001", "reason": "r"}
        status = run / "control/status.json"
        status.write_text('{"state": "training", "stall": {"sentence": 7}, "nodes": [\n]}')
        with (run / "events.jsonl").open("a") as events, (run / "metrics.jsonl").open("a") as metrics:
            for file, record in ((events, recovered), (events, validated), (events, failed), (metrics, step)):
                file.writelines(json.dumps(spoiled) + "\n" for spoiled in self.spoiled_records(record))
            metrics.flush()
            os.truncate(metrics.fileno(), os.fstat(metrics.fileno()).st_size + (20 << 30))  # one line
            events.write(json.dumps(recovered | {"sentence": "still shown"}) + "\n")
        self.wait_for(lambda: view.poll() is not None or "still shown" in shown.read_text(), "the last event")
        status.write_text('{"stall": "a" ' + " " * 1000)
        os.truncate(status, 20 << 30)
        (run / "control/end.json").write_text('{"instance": "i", "term": 0, "exit": 75, "reason": "it was stopped"}')
        lock.close()
        self.assertEqual(view.wait(60), 75, shown.read_text()[-500:])
        self.assertIn("incident 1: still shown", shown.read_text())

    def test_plot_ends_for_values_that_are_wider_apart_than_marks(self):
        run = large_run(self.folder / "run", nodes=2, trainers=1, group_nodes=1, steps=50)
        rows = [json.loads(line) | {"loss": 1e16 + 2 * (i % 2)} for i, line in enumerate((run / "metrics.jsonl").read_text().splitlines())]
        (run / "events.jsonl").unlink()  # its validation losses would widen the axis
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.assert_ends(["plot", run, "-o", run / "plot.svg"])

    def spoiled(self, value):
        """The document with hostile bytes in each text that is not a time or a state of the run."""
        if isinstance(value, dict):
            return {k: v if k in ("state", "phase", "kind", "time") else self.spoiled(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.spoiled(v) for v in value]
        return value + self.HOSTILE if isinstance(value, str) else value
