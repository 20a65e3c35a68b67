"""The GPU checklist, run by checklist.sh. Each part has a time limit; the other parts run also if one fails.

The JSON report has each part's figures with the command that produced them, the commit, the GPU and its driver.
"""

import argparse
import array
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 600  # for all parts together


class Skip(Exception):
    """A part cannot run here; the message says why."""


class Wrong(Exception):
    """A check failed; the message says which."""


def expect(right, what):
    if not right:
        raise Wrong(what)


def call(command, seconds, codes=(0,), **options):
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        raise Wrong(f"no end after {seconds:.0f} s: {' '.join(map(str, command))}")
    expect(done.returncode in codes, f"exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return done.stdout


def toml(value):
    return json.dumps(value)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Checklist:
    def __init__(self, flags):
        self.flags, self.bin = flags, flags.build / "bin"
        self.program = self.bin / "simplescale"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu-checklist-"))
        self.number = itertools.count()
        self.command = ""  # of the current part
        self.seconds = 0

    # ---- running things ----

    def tokens(self, vocab):
        path = self.folder / f"tokens-{vocab}.bin"
        if not path.exists():
            state, out = 1, array.array("H")
            for i in range(400_000):  # learnable: most tokens are a function of the previous one
                state = (state * 31 + 7) % vocab if i % 5 else (i * 2654435761 >> 7) % vocab
                out.append(state)
            path.write_bytes(out.tobytes())
        return path

    def config(self, preset, vocab, steps, **settings):
        sections = {
            "model": {"preset": preset},
            "data": {"source": str(self.tokens(vocab)), "format": "nanogpt", "shuffle": False, "validation_fraction": 0.0},
            "train": {"max_steps": steps, "warmup_iters": 2, "micro_batch_size": 8, "learning_rate": 4e-4, "precision": "bf16",
                      "validation_samples": 0, "sample_tokens": 0},
            "cluster": {"nodes": 1, "trainers_per_node": 1, "device": "cuda"},
            "checkpoint": {"disk_every_steps": 0},
        }
        for key, value in settings.items():
            section, name = key.split("__")
            sections.setdefault(section, {})[name] = value
        path = self.folder / f"run-{next(self.number)}.toml"
        path.write_text("".join(f"[{s}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in keys.items()) for s, keys in sections.items()))
        return path

    def train(self, *arguments, **settings):
        config = self.config(*arguments, **settings)
        run = config.with_suffix("")
        self.command = f"simplescale train {config.name}: " + " ".join(f"{k.replace('__', '.')}={v}" for k, v in settings.items())
        call([self.program, "train", config, f"--run={run}"], self.seconds, env={**os.environ, "SIMPLESCALE_LOG": "debug"})
        return run, lines(run / "metrics.jsonl")

    def breakdown(self, run):
        """Medians over a trainer's log lines of its steps. rest_ms: the wait for the state's copy, and its hash."""
        found = re.findall(r"step \d+: ([\d.]+) ms; data ([\d.]+), forward ([\d.]+), backward ([\d.]+), optimizer ([\d.]+)",
                           (run / "logs/n0.0.log").read_text())
        ms = [[float(x) for x in step] for step in found][3:]
        figures = {f"{name}_ms": round(statistics.median(step[i] for step in ms), 2)
                   for i, name in enumerate(("step", "data", "forward", "backward", "optimizer"))}
        return {**figures, "rest_ms": round(statistics.median(step[0] - sum(step[1:]) for step in ms), 2)}

    def digest(self, run):
        return call([self.program, "digest", run], 60).splitlines()[-1]

    # ---- the parts ----

    def tests(self):
        self.command = "test_gpu"
        out = call([self.bin / "test_gpu"], self.seconds)
        found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return {"result": out.strip().splitlines()[-2:], "nccl_one_rank": found}

    def runs(self):
        cuda, ours = self.train("mini", 8192, 20, train__precision="fp32")
        again, _ = self.train("mini", 8192, 20, train__precision="fp32")
        half, bf16 = self.train("mini", 8192, 20)
        cpu, theirs = self.train("mini", 8192, 20, train__precision="fp32", cluster__device="cpu")
        apart = max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, theirs))
        figures = {"fp32_from_cpu": apart, "bf16_from_fp32": max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, bf16)),
                   "repeats_its_bits": self.digest(cuda) == self.digest(again), "loss": [ours[0]["loss"], ours[-1]["loss"]]}
        expect(len(ours) == len(theirs) == 20 and apart < 1e-3, f"losses are too far from the CPU's: {figures}")
        expect(figures["repeats_its_bits"], f"two runs of the same configuration end with different bits: {figures}")
        return figures

    def shared_gpu(self):
        """2 x 2 trainers on one GPU, through host memory; then one of them is killed during a run."""
        batch = dict(train__precision="fp32", train__micro_batch_size=2, train__global_batch_size=8, train__warmup_iters=0)
        one, _ = self.train("micro", 4096, 30, **batch)
        four, _ = self.train("micro", 4096, 30, cluster__nodes=2, cluster__trainers_per_node=2, parallel__strategy="hybrid_shard",
                             parallel__group_nodes=1, **batch)
        expect(self.digest(one) == self.digest(four), "2 x 2 trainers end with other bits than 1 x 1")
        config = self.config("micro", 4096, 2000, cluster__nodes=2, cluster__trainers_per_node=2, parallel__strategy="hybrid_shard",
                             parallel__group_nodes=1, **batch)
        run = config.with_suffix("")
        process = subprocess.Popen([self.program, "train", config, f"--run={run}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + self.seconds
            while len(lines(run / "metrics.jsonl")) < 20:
                expect(time.monotonic() < end and process.poll() is None, "the run did not reach step 20")
                time.sleep(0.05)
            status = json.loads((run / "control/status.json").read_text())
            pid = next(t["pid"] for n in status["nodes"] for t in n["trainers"] if t["name"] == "n1.0")
            os.kill(pid, signal.SIGKILL)
            resumed = None
            while not resumed:
                expect(time.monotonic() < end and process.poll() is None, "the run did not resume after the kill")
                resumed = next((e for e in lines(run / "events.jsonl") if e["phase"] == "resume"), None)
                time.sleep(0.02)
            detected = next(e for e in lines(run / "events.jsonl") if e["phase"] == "detect")
            return {"kill_to_next_step_ms": resumed["ms"] - detected["ms"], "what": resumed["reason"]}
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()

    def speed(self):
        """TinyLlama on one GPU: speed, memory, and the configuration's estimate of its memory."""
        free = shutil.disk_usage("/dev/shm").free
        layers = 22 if free > 30e9 else int(22 * free / 30e9)
        if layers < 2:
            raise Skip(f"/dev/shm has {free / 1e9:.1f} GB free; TinyLlama's state needs 30 GB")
        settings = {"metrics__health_every_ms": 500, **({} if layers == 22 else {"model__layers": layers})}
        peak, over = [0.0], threading.Event()
        thread = threading.Thread(target=self.watch_memory, args=(peak, over))
        thread.start()
        try:
            run, metrics = self.train("tinyllama", 32000, 16, **settings)
        finally:
            over.set()
            thread.join()
        step_ms = statistics.median(b["time"] - a["time"] for a, b in zip(metrics[5:], metrics[6:])) * 1e3
        shown = call([self.program, "config", "show", self.folder / f"{run.name}.toml"], 60)
        figures = {"layers": layers, "step_ms": round(step_ms, 2), "tokens_per_second": round(metrics[-1]["tokens"] / 16 / step_ms * 1e3),
                   "mfu_palm": metrics[-1]["mfu"], "breakdown": self.breakdown(run), "gpu_peak_mib": peak[0],
                   "estimate": next((line.strip() for line in shown.splitlines() if " a GPU: state " in line), None),
                   "gpu_health": (lines(run / "health.jsonl") or [{}])[-1].get("gpus")}
        expect(figures["gpu_health"], f"health.jsonl has no GPU: {figures}")
        return figures

    def watch_memory(self, peak, over):
        while not over.wait(0.2):
            out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"], capture_output=True, text=True)
            peak[0] = max([peak[0], *(float(line) for line in out.stdout.split())])

    def pytorch(self):
        """fsdp_baseline.py on the model of the part before, eager and compiled."""
        peers, python = self.flags.peers.resolve(), ROOT / ".deps/python/bin/python"
        if not (peers / "fsdp_baseline.py").exists():
            raise Skip(f"no fsdp_baseline.py in {peers} (--peers)")
        if not python.exists():
            python = sys.executable
        figures = {}
        for way in ("eager", "compile"):
            command = [python, "fsdp_baseline.py", "--config", "tinyllama", "--device", "cuda", "--dtype", "bfloat16", "--steps", 14, "--warmup", 4,
                       *(["--compile"] if way == "compile" else [])]
            self.command = " ".join(map(str, command))
            figures[way] = json.loads(call(command, self.seconds / 2, cwd=peers).splitlines()[-1])
        return figures

    def sanitizer(self):
        tool = shutil.which("compute-sanitizer")
        if not tool:
            raise Skip("no compute-sanitizer")
        figures = {}
        for kind in ("memcheck", "racecheck", "initcheck"):
            self.command = f"compute-sanitizer --tool {kind} test_gpu --test-suite=kernels"
            out = call([tool, "--tool", kind, "--error-exitcode", 9, self.bin / "test_gpu", "--test-suite=kernels"], self.seconds / 3)
            figures[kind] = next((line for line in out.splitlines() if "SUMMARY" in line), "?")
        return figures


# name, what it checks, seconds at most
PARTS = [("tests", "kernels, backend, engine, NCCL", 150), ("runs", "losses as on the CPU, twice the same bits", 100),
         ("shared_gpu", "2 x 2 trainers on one GPU; one killed", 120), ("speed", "TinyLlama: speed, snapshots, memory, health", 200),
         ("pytorch", "the same in PyTorch, eager and compiled", 150), ("sanitizer", "memcheck, racecheck, initcheck", 120)]


def gpu():
    """Name, driver and memory of the first GPU; None without a GPU."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", "-i", "0"],
                             capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() if out.returncode == 0 and out.stdout.strip() else None


def main():
    a = argparse.ArgumentParser(description="The GPU checklist.")
    a.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    a.add_argument("--peers", type=pathlib.Path, default=ROOT / "tests/bench/peers")
    a.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-checklist.json"))
    a.add_argument("--part", action="append", choices=[p[0] for p in PARTS], help="run only this part; may be repeated")
    flags = a.parse_args()
    flags.build = flags.build.resolve()
    device, checks, begun = gpu(), Checklist(flags), time.monotonic()
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    report = {"gpu": device, "commit": commit, "date": time.strftime("%Y-%m-%d"), "host_memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30), "parts": []}
    for name, what, limit in PARTS:
        if flags.part and name not in flags.part:
            continue
        at, figures = time.monotonic(), {}
        checks.command, checks.seconds = "", min(limit, SECONDS - (at - begun))
        try:
            if not device:
                raise Skip("no GPU (nvidia-smi)")
            if not checks.program.exists() or not (checks.bin / "test_gpu").exists():
                raise Skip(f"{checks.bin} has no simplescale and test_gpu: ./simplescale build, or --build")
            if checks.seconds < 10:
                raise Skip("no time left")
            figures, verdict, why = getattr(checks, name)(), "ok", ""
        except Skip as skip:
            verdict, why = "SKIPPED", str(skip)
        except Exception as error:  # fails this part; the next ones still run
            verdict, why = "FAILED", f"{type(error).__name__}: {error}" if not isinstance(error, Wrong) else str(error)
        seconds = round(time.monotonic() - at, 1)
        report["parts"].append({"part": name, "verdict": verdict, "seconds": seconds, "why": why, "figures": figures, "command": checks.command})
        print(f"{verdict:8}{seconds:6.1f} s  {name:11}{what}\n" + "".join(f"            {k}: {v}\n" for k, v in figures.items())
              + (f"            {why}\n" if why else ""), end="", flush=True)
        flags.out.write_text(json.dumps(report, indent=1) + "\n")
    shutil.rmtree(checks.folder, ignore_errors=True)
    print(f"{device or 'no GPU'}; {flags.out}")
    verdicts = [part["verdict"] for part in report["parts"]]
    return 1 if "FAILED" in verdicts else 77 if "ok" not in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
