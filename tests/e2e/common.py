"""Shared by the end-to-end tests: a tiny model, synthetic tokens, and the program run as a user runs it."""

import array
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".deps/python/bin/python"
BIN = pathlib.Path(os.environ.get("SIMPLESCALE_BIN", ROOT / "build/release/bin")).resolve()
PROGRAM = BIN / "simplescale"


def installed(*modules):
    """Whether the Python of .deps has these modules. None is loaded, which takes seconds for some."""
    return all(any(PYTHON.parents[1].glob(f"lib/python*/site-packages/{module}")) for module in modules)


def needs(*modules):
    return unittest.skipUnless(installed(*modules), f"{', '.join(modules)}: not in .deps/python; ./simplescale test installs it")


HAS_PYARROW = installed("pyarrow")

# Small enough for 16 trainers on two cores. No size is a power of two, so that padding errors show.
TINY = {
    "model.dim": 48, "model.hidden": 80, "model.layers": 2, "model.heads": 4, "model.kv_heads": 2,
    "model.vocab": 211, "model.block_size": 24,
    "train.micro_batch_size": 1, "train.precision": '"fp32"', "train.learning_rate": 3e-3, "train.validation_samples": 3,
    "train.sample_tokens": 0, "cluster.device": '"cpu"', "checkpoint.disk_every_steps": 0, "cluster.join_timeout_ms": 60000,
    "parallel.collective_timeout_ms": 30000,
    "cluster.balance": '"even"',  # tests count generations, and a loaded machine may be slow on one node alone
}


def tokens(count, vocab):
    """Learnable tokens: each one depends on the one before it, except every fifth."""
    out, state = array.array("H"), 1
    for i in range(count):
        state = (state * 31 + 7) % vocab if i % 5 else (i * 2654435761 >> 7) % vocab
        out.append(state)
    return out


def leader(run):
    """Term, process id and node of the leading supervisor, from the term files."""
    found = [(int(p.name.rsplit("-", 1)[1]), p) for p in (run / "control").glob("term-*") if p.name.rsplit("-", 1)[1].isdigit()]
    if not found:
        return None
    number, path = max(found)
    document = json.loads(path.read_text())
    return number, document["pid"], document["node"]


def events(run, *kinds):
    return [e for e in lines(run / "events.jsonl") if e["kind"] in kinds]


def checked_kill(pid, number, unchecked=os.kill):
    """os.kill() of a process. status has 0 for one that is down, and a signal to 0 stops or ends the whole group that runs the tests."""
    if pid <= 0:
        raise ValueError(f"signal {number} to {pid}: the process is down")
    unchecked(pid, number)


os.kill = checked_kill


def kill(*pids):
    """Kills these processes, of which some may have ended. 0, as of a trainer that is down: none."""
    for pid in map(int, pids):
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)


def kill_all(run):
    """Kills all processes of a run, those too that one of them starts meanwhile. None holds a lock then."""
    while left := leftovers(run):
        kill(*left)
        while any(ends(pid) for pid in left):
            time.sleep(0.001)


def ends(pid):
    """Whether a process that was killed has not ended yet. Its command line is gone before its files are closed."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Interpreter:
    """A process of the Python of .deps that loads modules once, and then runs scripts in it, each with variables of its own."""

    SERVE = """
import contextlib, importlib, io, json, os, sys, traceback
answers = sys.stdout
for module in sys.argv[1:]:
    importlib.import_module(module)
for line in sys.stdin:
    script, sys.argv, folder = json.loads(line)
    os.chdir(folder)
    said, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(said):
            exec(script, {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([said.getvalue(), error]), file=answers, flush=True)
"""

    def __init__(self, *modules):
        self.process = subprocess.Popen([PYTHON, "-c", self.SERVE, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "OMP_NUM_THREADS": "1"})  # models are tiny

    def run(self, script, *arguments, folder):
        """What the script prints. An error of the script is an AssertionError."""
        print(json.dumps([script, ["-", *map(str, arguments)], str(folder)]), file=self.process.stdin, flush=True)
        said, error = json.loads(self.process.stdout.readline())
        assert not error, error[-4000:]
        return said

    def close(self):
        self.process.communicate()


class Case(unittest.TestCase):
    """Each test has its own folder, which is removed if the test passes."""

    warm = False  # True: each node has a warm process, as by default; it costs as much to start as a trainer

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="simplescale-e2e-"))
        self.data = self.folder / "tokens.bin"
        self.data.write_bytes(tokens(20000, TINY["model.vocab"]).tobytes())
        self.config = self.folder / "tiny.toml"
        self.write_config(TINY)

    def tearDown(self):
        outcome = getattr(self, "_outcome", None)
        failed = outcome and any(error for _, error in getattr(outcome, "errors", []) or [])
        if hasattr(outcome, "result"):
            failed = any(test is self for test, _ in outcome.result.failures + outcome.result.errors)
        if failed:
            print(f"the test's folder is kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def write_config(self, keys, name=None):
        path = name or self.config
        sections = {}
        if not self.warm:
            keys = {"supervision.warm_processes": 0, **keys}
        for key, value in {"data.source": f'"{self.data}"', **keys}.items():
            section, _, leaf = key.partition(".")
            sections.setdefault(section, []).append(f"{leaf} = {json.dumps(value) if isinstance(value, bool) else value}")
        path.write_text("\n".join(f"[{s}]\n" + "\n".join(lines) + "\n" for s, lines in sections.items()))
        return path

    def command(self, *arguments, timeout=120, code=0, env=None):
        """Runs a command of the program and returns its stdout. Another exit code than `code` fails the test."""
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, cwd=self.folder,
                              env={**os.environ, **(env or {})})
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}\n{self.logs(arguments)}")
        self.stderr = done.stderr
        return done.stdout

    def logs(self, arguments):
        for argument in map(str, arguments):
            if argument.startswith("--run="):
                folder = pathlib.Path(argument[6:]) / "logs"
                return "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-1500:]}" for f in sorted(folder.glob("*.log")))
        return ""

    def layout(self, groups, trainers, strategy="hybrid_shard"):
        """The flags for groups x trainers; each group is one node."""
        return [f"--cluster.nodes={groups}", f"--cluster.trainers_per_node={trainers}", "--parallel.group_nodes=1",
                f"--parallel.strategy={strategy}"]

    def train(self, name, *overrides, timeout=180, code=0):
        run = self.folder / name
        self.command("train", self.config, f"--run={run}", *overrides, timeout=timeout, code=code)
        return run

    def start(self, name, *overrides):
        """Starts `train` in the background. Returns the run's folder and the process."""
        run = self.folder / name
        process = subprocess.Popen([PROGRAM, "train", str(self.config), f"--run={run}", *overrides], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return run, process

    def wait_for(self, condition, what, timeout=60):
        """Polls until the condition is true or a deadline passes. Conditions read the run's files and /proc, whose changes
        are not announced to a test."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.01)
        self.fail(f"waited {timeout} s for {what}")

    def undisturbed(self, *overrides):
        """The digest of an undisturbed run with these overrides, of which those that change no bit do not count: it has one
        trainer. Tests of one program and configuration train it once: digests are kept in the build folder. The overrides name
        no file."""
        overrides = [o for o in overrides if not o.startswith(("--cluster.", "--parallel.", "--checkpoint.", "--supervision."))]
        self.assertNotIn(str(self.folder), " ".join(overrides))
        programs = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in (PROGRAM, BIN / "simplescale-compute")]
        config = self.config.read_text().replace(str(self.folder), "")
        key = json.dumps([programs, config, overrides]).encode() + self.data.read_bytes()
        kept = BIN.parent / "reference_digests" / hashlib.sha256(key).hexdigest()[:32]
        if not kept.exists():
            digest = self.digest(self.train("reference", *overrides))
            kept.parent.mkdir(exist_ok=True)
            written = kept.with_name(f"{kept.name}.{os.getpid()}")  # another test file may train the same
            written.write_text(digest)
            written.rename(kept)
        return kept.read_text()

    def slow_down(self, run, node="n0", within=(), fault="slow_link", ms=30):
        """What a node sends to others waits until go_on(), which it returns: a run of several nodes outlasts what happens to it with
        few steps.
        within: the command that runs others in the network namespace of a node, if the run's nodes have some.
        ms: of a message. fault: slow_node, which delays each micro-batch by 100 ms, also slows a node that trains alone, and leaves the network as it is."""
        self.wait_for(lambda: last_step(run) >= 1, "a step")
        slow = lambda value, ms: subprocess.run([*within, PROGRAM, "console", run, "-c", f"inject {fault} {node} --value {value} --ms {ms}"],
                                                capture_output=True).returncode == 0
        self.wait_for(lambda: slow(ms if fault == "slow_link" else 100, 3600000), "a run that can be slowed down")
        self.go_on = lambda: slow(1, 1)  # it may be lost
        return self.go_on

    def go_on(self):
        """Does nothing if the run has not been slowed down."""

    def digest(self, run):
        return self.command("digest", run).splitlines()[-1]

    def verify(self, run):
        return self.command("verify", run)


class EndlessRun(Case):
    """A run, `run_folder` and `process`, that trains until stop()."""

    def train_endlessly(self, *overrides):
        self.run_folder, self.process = self.start("run", *overrides, f"--train.max_steps={10 ** 6}")
        self.addCleanup(lambda: kill(*leftovers(self.run_folder)))
        self.slow_down(self.run_folder, ms=10)

    def events(self, *kinds):
        return events(self.run_folder, *kinds)

    def console(self, *commands, code=0):
        return self.command("console", self.run_folder, *[word for c in commands for word in ("-c", c)], code=code)

    def stop(self):
        self.go_on()
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=120)
        self.assertEqual(self.process.returncode, 75)
        self.wait_for(lambda: not leftovers(self.run_folder), "all processes of the run to end")


def lines(path):
    """The complete JSON lines of a file that the run may still be writing."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def last_step(run):
    steps = lines(run / "metrics.jsonl")
    return steps[-1]["step"] if steps else 0


def status(run):
    path = run / "control/status.json"
    return json.loads(path.read_text()) if path.exists() else None


def trainer_pids(run):
    document = status(run)
    return {t["name"]: t["pid"] for n in document["nodes"] for t in n["trainers"]} if document else {}


def leftovers(run):
    """Processes that still belong to the run."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(run) in (entry / "cmdline").read_text(errors="replace"):
                    found.append(entry.name)
            except OSError:
                pass
    return found
