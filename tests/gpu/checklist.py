"""The GPU checklist, run by checklist.sh. Each part has a time limit; the other parts run also if one fails.

The JSON report has each part's figures with the command that produced them, the commit, the GPU and its driver. The
most valuable parts come first. --rehearse runs every part on the CPU with a tiny model, in place of the GPU's tests
with those over the fake GPU: it exercises what reads the program's files and lines, and its figures mean nothing.
"""

import argparse
import array
import glob
import itertools
import json
import math
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
SECONDS = 600  # for all parts together, the final saves of both speed parts included
SAVE_SECONDS = 20  # for the final save of a speed part
PEAK_FLOPS = [("H100", 989e12), ("H200", 989e12), ("A100", 312e12), ("B200", 2250e12)]  # dense bf16; in the GPU's name
REHEARSED_GPU = "NVIDIA H100 (rehearsed on the CPU), none, 0 MiB"


class Skip(Exception):
    """A part cannot run here; the message says why."""


class Wrong(Exception):
    """A check failed; the message says which."""


def expect(right, what):
    if not right:
        raise Wrong(what)


def our_environment():
    """That of our programs. Python keeps the caller's: the packed libraries may be older than those that it needs."""
    found = [os.environ[name] for name in ("SIMPLESCALE_LIBRARIES", "LD_LIBRARY_PATH") if os.environ.get(name)]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(found)}


def call(command, seconds, codes=(0,), **options):
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=seconds,
                              **{"env": our_environment(), **options})
    except subprocess.TimeoutExpired:
        raise Wrong(f"no end after {seconds:.0f} s: {' '.join(map(str, command))}")
    expect(done.returncode in codes, f"exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return done.stdout


def lines(path):
    """The JSON lines of a file that a running program may be writing."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def json_lines(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def peak_flops(name):
    """Dense bf16 peak in FLOP/s of the GPU of this name; 0: unknown."""
    return next((peak for model, peak in PEAK_FLOPS if model in name), 0)


def has_torch(python):
    try:
        return subprocess.run([python, "-c", "import torch, numpy"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_python():
    """A Python with torch and numpy: ours, the caller's, one on PATH, or one of a virtual environment; None without."""
    named = [os.environ.get(k, "") + "/bin/python" for k in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(k)]
    found = [glob.glob(pattern) for pattern in ("/opt/*/bin/python3", "/root/*/bin/python3", os.path.expanduser("~/*/bin/python3"),
                                                "/usr/bin/python3.*", "/usr/local/bin/python3*")]
    tried = [ROOT / ".deps/python/bin/python", *named, sys.executable, shutil.which("python3"), *sum(map(sorted, found), [])]
    known = dict.fromkeys(str(p) for p in tried if p and os.access(p, os.X_OK) and not str(p).endswith("-config"))
    return next(filter(has_torch, known), None)


def torch_libraries(python):
    """The folders of libtorch and of NVIDIA's libraries beside it, as in LD_LIBRARY_PATH."""
    code = "import glob, importlib.util as u, os; t = os.path.dirname(u.find_spec('torch').origin); " \
           "print(':'.join([t + '/lib', *sorted(glob.glob(os.path.dirname(t) + '/nvidia/*/lib'))]))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def wait_until(condition, end, process, what):
    """Returns condition()'s first true value. process: must run meanwhile; end: monotonic seconds."""
    while not (value := condition()):
        expect(time.monotonic() < end and process.poll() is None, what)
        time.sleep(0.02)
    return value


class Checklist:
    def __init__(self, flags, gpu_name):
        self.flags, self.bin, self.rehearse = flags, flags.build / "bin", flags.rehearse
        self.program = self.bin / "simplescale"
        self.peak_flops = peak_flops(gpu_name or "")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu-checklist-"))
        self.number = itertools.count()
        self.command = ""  # of the current part
        self.seconds = 0  # its limit
        self.found = {}  # part -> its figures

    # ---- running things ----

    def tokens(self, vocab):
        path = self.folder / f"tokens-{vocab}.bin"
        if not path.exists():
            state, out = 1, array.array("H")
            for i in range(40_000 if self.rehearse else 2_500_000):  # learnable: most tokens are a function of the previous one
                state = (state * 31 + 7) % vocab if i % 5 else (i * 2654435761 >> 7) % vocab
                out.append(state)
            path.write_bytes(out.tobytes())
        return path

    def config(self, preset, vocab, steps, **settings):
        if self.rehearse:
            preset, vocab, settings = "micro", 4096, {**settings, "model__block_size": 32, "train__micro_batch_size": 2}
            if "train__global_batch_size" in settings:
                settings["train__global_batch_size"] = 8
        sections = {
            "model": {"preset": preset},
            "data": {"source": str(self.tokens(vocab)), "format": "nanogpt", "shuffle": False, "validation_fraction": 0.0},
            "train": {"max_steps": steps, "warmup_iters": 2, "micro_batch_size": 8, "learning_rate": 4e-4, "precision": "bf16",
                      "validation_samples": 0, "sample_tokens": 0},
            "cluster": {"nodes": 1, "trainers_per_node": 1, "device": "cpu" if self.rehearse else "cuda",
                        "peak_flops": self.peak_flops},
            "checkpoint": {"disk_every_steps": 0},
        }
        for key, value in settings.items():
            section, name = key.split("__")
            sections.setdefault(section, {})[name] = value
        path = self.folder / f"run-{next(self.number)}.toml"
        path.write_text("".join(f"[{s}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()) for s, keys in sections.items()))
        return path

    def start(self, config):
        """A process of `simplescale train`, and its run folder."""
        run = config.with_suffix("")
        self.command = f"simplescale train {config.name}: " + " ".join(config.read_text().split("\n"))
        log = open(f"{run}.log", "w")
        with log:
            return subprocess.Popen([self.program, "train", config, f"--run={run}"], stdout=log, stderr=log,
                                    env={**our_environment(), "SIMPLESCALE_LOG": "debug"}), run

    def end(self, process):
        """Stops a run that a failed check left behind."""
        for number, seconds in ((signal.SIGINT, SAVE_SECONDS), (signal.SIGTERM, 5)):
            if process.poll() is not None:
                return
            process.send_signal(number)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
        process.kill()
        process.wait()

    def train(self, preset, vocab, steps, save_seconds=None, **settings):
        """Run folder, its metrics and the seconds from the last step to the end of the process, which saves the state.

        save_seconds: the limit of the save; None: it counts towards that of the part."""
        process, run = self.start(self.config(preset, vocab, steps, **settings))
        end = time.monotonic() + self.seconds
        try:
            log = lambda: pathlib.Path(f"{run}.log").read_text()[-1500:]
            while len(lines(run / "metrics.jsonl")) < steps:
                expect(process.poll() is None or len(lines(run / "metrics.jsonl")) == steps,
                       f"exit code {process.returncode}: {self.command}\n{log()}")
                expect(time.monotonic() < end, f"not {steps} steps after {self.seconds:.0f} s: {self.command}\n{log()}")
                time.sleep(0.02)
            last = time.monotonic()
            try:
                process.wait(save_seconds or max(1, end - last))
            except subprocess.TimeoutExpired:
                raise Wrong(f"all steps are done, but the process did not end within {time.monotonic() - last:.0f} s: {self.command}")
            expect(process.returncode == 0, f"exit code {process.returncode}: {self.command}\n{log()}")
            return run, lines(run / "metrics.jsonl"), round(time.monotonic() - last, 2)
        finally:
            self.end(process)

    def breakdown(self, run):
        """Medians over a trainer's log lines of its steps. rest_ms: the wait for the state's copy, and its hash."""
        found = re.findall(r"step \d+: ([\d.]+) ms; data ([\d.]+), forward ([\d.]+), backward ([\d.]+), optimizer ([\d.]+)",
                           (run / "logs/n0.0.log").read_text())
        ms = [[float(x) for x in step] for step in found][3:]
        expect(ms, f"{run}/logs/n0.0.log has no more than 3 lines of steps")
        figures = {f"{name}_ms": round(statistics.median(step[i] for step in ms), 2)
                   for i, name in enumerate(("step", "data", "forward", "backward", "optimizer"))}
        return {**figures, "rest_ms": round(statistics.median(step[0] - sum(step[1:]) for step in ms), 2)}

    def digest(self, run):
        return call([self.program, "digest", run], 60).splitlines()[-1]

    def state_folder(self, need):
        """Fails if /dev/shm cannot hold both states. A folder for checkpoints there if there is room, else on disk."""
        disk = shutil.disk_usage("/dev/shm")
        gib = lambda size: f"{size / 2**30:.1f} GiB"
        expect(disk.free > need, f"/dev/shm has {gib(disk.free)} free, and the states need {gib(need)}: "
               f"mount -o remount,size={math.ceil((disk.used + 1.6 * need) / 2**30)}G /dev/shm")
        where = "/dev/shm" if disk.free > 1.55 * need else None
        return pathlib.Path(tempfile.mkdtemp(prefix="gpu-checklist-", dir=where))

    # ---- the parts ----

    def tests(self):
        command = [self.bin / "test_nccl", "-tc=*lost*"] if self.rehearse else [self.bin / "test_gpu", "-tce=*100 times*"]
        self.command = " ".join(map(str, command))
        return {"result": call(command, self.seconds).strip().splitlines()[-3:]}

    def kernels(self):
        """Each kernel at TinyLlama's shapes: its time, and its share of a measured copy or of a large product."""
        command = [self.bin / ("gpu_bench_fake" if self.rehearse else "gpu_bench"), "tiny" if self.rehearse else "tinyllama"]
        self.command = " ".join(map(str, command))
        rows = json_lines(call(command, self.seconds))
        expect(rows and all({"kernel", "ms", "share"} <= set(row) for row in rows), f"not a table of kernels: {rows[:2]}")
        return {"table": [f"{r['kernel']:38}{r['ms']:10.3f} ms {100 * r['share']:6.1f} % of {r['of']}" for r in rows], "rows": rows}

    def tinyllama(self, samples, steps):
        """TinyLlama in steps of `samples` samples: speed, memory, its estimate, and the time of the final save."""
        need = 2.05 * 12 * (1.1e9 if not self.rehearse else 1e6)
        saves, peak, over = self.state_folder(need), [0.0], threading.Event()
        thread = threading.Thread(target=self.watch_memory, args=(peak, over))
        thread.start()
        try:
            run, metrics, save_s = self.train("tinyllama", 32000, steps, SAVE_SECONDS, metrics__health_every_ms=500,
                                              train__global_batch_size=samples, checkpoint__folder=str(saves))
        finally:
            over.set()
            thread.join()
            shutil.rmtree(saves, ignore_errors=True)
        warm = min(5, steps // 2)
        step_ms = statistics.median(b["time"] - a["time"] for a, b in zip(metrics[warm - 1:], metrics[warm:])) * 1e3
        shown = call([self.program, "config", "show", f"{run}.toml"], 60)
        estimate = re.search(r"memory +(about ([\d.]+) (\w+) per .*)", shown)
        expect(estimate, "config show has no line `memory`")
        figures = {"step_ms": round(step_ms, 2), "tokens_per_second": round(metrics[-1]["tokens"] / steps / step_ms * 1e3),
                   "mfu_palm": metrics[-1]["mfu"], "breakdown": self.breakdown(run), "final_save_s": save_s,
                   "gpu_peak_mib": peak[0], "estimate": estimate[1],
                   "estimate_mib": float(estimate[2]) * {"KiB": 2**-10, "MiB": 1, "GiB": 2**10}[estimate[3]],
                   "gpu_health": (lines(run / "health.jsonl") or [{}])[-1].get("gpus")}
        expect(self.rehearse or figures["gpu_health"], f"health.jsonl has no GPU: {figures}")
        expect(not self.peak_flops or figures["mfu_palm"] is not None, f"no MFU: {figures}")
        return figures

    def speed(self):
        return self.tinyllama(64, 6 if self.rehearse else 12)

    def speed_one(self):
        return self.tinyllama(2 if self.rehearse else 8, 6 if self.rehearse else 24)

    def watch_memory(self, peak, over):
        while not over.wait(0.2) and not self.rehearse:
            out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"], capture_output=True, text=True)
            peak[0] = max([peak[0], *(float(line) for line in out.stdout.split())])

    def pytorch(self):
        """fsdp_baseline.py on the model of the parts before, eager and compiled."""
        peers, python = self.flags.peers.resolve(), find_python()
        if not (peers / "fsdp_baseline.py").exists():
            raise Skip(f"no fsdp_baseline.py in {peers} (--peers)")
        if not python:
            raise Skip("no python3 with torch and numpy")
        shape = ["--config", "tinyllama", "--device", "cuda", "--steps", 14, "--warmup", 4]
        if self.rehearse:
            shape = ["--config", "micro", "--block_size", 32, "--micro_batch_size", 2, "--steps", 3, "--warmup", 1]
        figures = {}
        for way in ("eager", *([] if self.rehearse else ["compile"])):  # inductor takes a minute on a CPU
            command = [python, "fsdp_baseline.py", *shape, "--dtype", "float32" if self.rehearse else "bfloat16", *(["--compile"] if way == "compile" else [])]
            self.command = " ".join(map(str, command))
            figures[way] = json_lines(call(command, self.seconds * (0.4 if way == "eager" else 0.6), cwd=peers, env=os.environ))[-1]
            ours = self.found.get("speed_one", {}).get("tokens_per_second")
            if ours:
                figures[f"ours_to_{way}"] = round(ours / figures[way]["tokens_per_second"], 3)
        return figures

    def runs(self):
        cuda, ours, _ = self.train("mini", 8192, 20, train__precision="fp32")
        again, _, _ = self.train("mini", 8192, 20, train__precision="fp32")
        half, bf16, _ = self.train("mini", 8192, 20)
        cpu, theirs, _ = self.train("mini", 8192, 20, train__precision="fp32", cluster__device="cpu")
        apart = max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, theirs))
        figures = {"fp32_from_cpu": apart, "bf16_from_fp32": max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, bf16)),
                   "repeats_its_bits": self.digest(cuda) == self.digest(again), "loss": [ours[0]["loss"], ours[-1]["loss"]]}
        expect(len(ours) == len(theirs) == 20 and apart < 1e-3, f"losses are too far from the CPU's: {figures}")
        expect(figures["repeats_its_bits"], f"two runs of the same configuration end with different bits: {figures}")
        return figures

    def shared_gpu(self):
        """2 x 2 trainers on one GPU, through host memory; then one of them is killed during a run."""
        batch = dict(train__precision="fp32", train__micro_batch_size=2, train__global_batch_size=8, train__warmup_iters=0)
        layout = dict(cluster__nodes=2, cluster__trainers_per_node=2, parallel__strategy="hybrid_shard", parallel__group_nodes=1, **batch)
        one, _, _ = self.train("micro", 4096, 20, **batch)
        four, _, _ = self.train("micro", 4096, 20, **layout)
        expect(self.digest(one) == self.digest(four), "2 x 2 trainers end with other bits than 1 x 1")
        process, run = self.start(self.config("micro", 4096, 100_000, **layout))
        end = time.monotonic() + self.seconds
        try:
            wait_until(lambda: len(lines(run / "metrics.jsonl")) >= 10, end, process, "the run did not reach step 10")
            status = json.loads((run / "control/status.json").read_text())
            pid = next(t["pid"] for n in status["nodes"] for t in n["trainers"] if t["name"] == "n1.0")
            os.kill(pid, signal.SIGKILL)
            phase = lambda name: next((e for e in lines(run / "events.jsonl") if e["phase"] == name), None)
            resumed = wait_until(lambda: phase("resume"), end, process, "the run did not resume after the kill")
            return {"kill_to_next_step_ms": resumed["ms"] - phase("detect")["ms"], "what": resumed["reason"]}
        finally:
            self.end(process)

    def nccl(self):
        """Communicators of one rank, made, used and closed or aborted 100 times."""
        command = [self.bin / "test_nccl", "-tc=*lost*"] if self.rehearse else [self.bin / "test_gpu", "-tc=*100 times*"]
        self.command = " ".join(map(str, command))
        found = json_lines(call(command, self.seconds))
        expect(found or self.rehearse, "the test printed no figures")
        return {"nccl_one_rank": found}

    def snapshots(self):
        """Checkpoints on disk off and at every step. The copy of each state to host memory has no switch: rest_ms is its cost."""
        figures = {}
        for name, every in (("off", 0), ("every_step", 1)):
            run, metrics, _ = self.train("mini", 8192, 20, checkpoint__disk_every_steps=every, checkpoint__keep=1)
            figures[name] = self.breakdown(run)
        figures["every_step_to_off"] = round(figures["every_step"]["step_ms"] / figures["off"]["step_ms"], 4)
        return figures

    def memory(self):
        """The peak of the speed part against the estimate of `config show`; the peak has the CUDA contexts, too."""
        speed = self.found.get("speed")
        if not speed:
            raise Skip("the part `speed` has no figures")
        self.command = "nvidia-smi --query-gpu=memory.used; simplescale config show"
        ratio = speed["gpu_peak_mib"] / speed["estimate_mib"]
        expect(self.rehearse or 0.95 < ratio < 1.05, f"peak {speed['gpu_peak_mib']} MiB, estimate {speed['estimate_mib']} MiB")
        return {"peak_to_estimate": round(ratio, 4)}

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
PARTS = [("tests", "kernels, backend, engine", 50), ("speed", "TinyLlama, 8 micro-batches a step", 90),
         ("speed_one", "TinyLlama, one micro-batch a step", 60), ("pytorch", "the same in PyTorch, eager and compiled", 110),
         ("kernels", "each kernel against its limit", 25), ("runs", "losses as on the CPU, twice the same bits", 50),
         ("shared_gpu", "2 x 2 trainers on one GPU; one killed", 50), ("nccl", "communicators made and aborted 100 times", 20),
         ("snapshots", "checkpoints off and at every step", 30), ("memory", "peak against the estimate", 5),
         ("sanitizer", "memcheck, racecheck, initcheck", 60)]
assert sum(part[2] for part in PARTS) + 2 * SAVE_SECONDS < SECONDS


def gpu():
    """Name, driver and memory of the first GPU; None without a GPU."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", "-i", "0"],
                             capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() if out.returncode == 0 and out.stdout.strip() else None


def told(figures):
    """The lines of a part's table on the terminal."""
    table = figures.get("table", [])
    return [*table, *(f"{k}: {v}" for k, v in figures.items() if not table)]


def main():
    a = argparse.ArgumentParser(description="The GPU checklist.")
    a.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    a.add_argument("--peers", type=pathlib.Path, default=ROOT / "tests/bench/peers")
    a.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-checklist.json"))
    a.add_argument("--rehearse", action="store_true", help="on the CPU, with a tiny model: no figure means anything")
    a.add_argument("--part", action="append", choices=[p[0] for p in PARTS], help="run only this part; may be repeated")
    a.add_argument("--libraries", action="store_true", help="print the folders of libtorch's libraries only")
    flags = a.parse_args()
    if flags.libraries:
        python = find_python()
        print(torch_libraries(python) if python else "no python3 with torch and numpy is found", file=sys.stdout if python else sys.stderr)
        return 0 if python else 1
    flags.build = flags.build.resolve()
    device, begun = REHEARSED_GPU if flags.rehearse else gpu(), time.monotonic()
    checks, packed = Checklist(flags, device), ROOT / "COMMIT"  # pack.sh writes it
    commit = packed.read_text().strip() if packed.exists() else subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    report = {"gpu": device, "commit": commit, "date": time.strftime("%Y-%m-%d"),
              "host_memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30), "parts": []}
    for name, what, limit in PARTS:
        if flags.part and name not in flags.part:
            continue
        at, figures = time.monotonic(), {}
        checks.command = ""
        checks.seconds = SECONDS if flags.rehearse else min(limit, SECONDS - (at - begun))  # the CPU may be busy
        try:
            if not device:
                raise Skip("no GPU (nvidia-smi)")
            expect(checks.program.exists(), f"{checks.bin} has no simplescale: ./simplescale build, or --build")
            if checks.seconds < min(limit, 10):
                raise Skip("no time left")
            figures, verdict, why = getattr(checks, name)(), "ok", ""
            checks.found[name] = figures
        except Skip as skip:
            verdict, why = "SKIPPED", str(skip)
        except Exception as error:  # fails this part; the next ones still run
            verdict, why = "FAILED", f"{type(error).__name__}: {error}" if not isinstance(error, Wrong) else str(error)
        seconds = round(time.monotonic() - at, 1)
        report["parts"].append({"part": name, "verdict": verdict, "seconds": seconds, "why": why, "figures": figures, "command": checks.command})
        print(f"{verdict:8}{seconds:6.1f} s  {name:11}{what}\n" + "".join(f"            {text}\n" for text in told(figures))
              + (f"            {why}\n" if why else ""), end="", flush=True)
        flags.out.write_text(json.dumps(report, indent=1) + "\n")
    shutil.rmtree(checks.folder, ignore_errors=True)
    print(f"{device or 'no GPU'}; {flags.out}")
    verdicts = [part["verdict"] for part in report["parts"]]
    return 1 if "FAILED" in verdicts else 77 if "ok" not in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
