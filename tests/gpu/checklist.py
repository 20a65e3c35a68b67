"""The GPU checklist, run by checklist.sh. Each part has a time limit; the other parts run also if one fails.

The JSON report has each part's figures with the command that produced them, the commit, the GPU and its driver. It is
written before and after each part, and a part that fails or is stopped keeps the figures that it has. The most valuable
parts come first. --rehearse runs every part on the CPU with a tiny model, in place of the GPU's tests
with those over the fake GPU: it exercises what reads the program's files and lines, and its figures mean nothing.
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

import kernel_trace
import machine
import products
from processes import Late, Skip, Stopped, Wrong, call, end_all, expect, our_environment, prepare

ROOT = machine.ROOT
SECONDS = 570  # for all parts together; less than the ten minutes that a lent machine may allow. Parts seldom need their limits
SAVE_SECONDS = 45  # for the final save of the part `speed_one`
PEAK_FLOPS = [("H100", 989e12), ("H200", 989e12), ("A100", 312e12), ("B200", 2250e12)]  # dense bf16; in the GPU's name
NOT_WARM = r"no context beforehand|NCCL (?:is|was) not ready beforehand"  # in the log of a process that waits
REHEARSED_GPU = "NVIDIA H100 (rehearsed on the CPU)"


def lines(path):
    """The JSON lines of a file that a running program may be writing."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def json_lines(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def peak_flops(name):
    """Dense bf16 peak in FLOP/s of the GPU of this name; 0: unknown."""
    return next((peak for model, peak in PEAK_FLOPS if model in name), 0)


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
        self.figures = {}  # of the current part, which adds them as it finds them
        self.found = {}  # part -> its figures
        self.model = None  # of the speed parts: see choose_model()
        self.measured = None  # a run of that model which has chosen algorithms: measuring them takes 20 s
        self.health = None  # of the GPU, in status.json after the steps of train()

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

    def start(self, config, like=None):
        """A process of `simplescale train`, and its run folder. like: a run folder whose algorithms of products it takes."""
        run = config.with_suffix("")
        if like:
            (run / "control").mkdir(parents=True, mode=0o700)
            if self.rehearse:  # CPUs choose nothing
                (like / "control/products").mkdir(exist_ok=True)
            shutil.copytree(like / "control/products", run / "control/products")
        self.command = f"simplescale train {config.name}: " + " ".join(config.read_text().split("\n"))
        log = open(f"{run}.log", "w")
        with log:
            return subprocess.Popen([self.program, "train", config, f"--run={run}"], stdout=log, stderr=log,
                                    env={**our_environment(), "SIMPLESCALE_LOG": "debug"}), run

    def end(self, process, save_seconds=SAVE_SECONDS):
        """Stops a run; a second Ctrl-C ends its save."""
        for number, seconds in ((signal.SIGINT, save_seconds), (signal.SIGINT, 10), (signal.SIGTERM, 5)):
            if process.poll() is not None:
                return
            process.send_signal(number)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
        process.kill()
        process.wait()

    def train(self, preset, vocab, steps, save_seconds=None, like=None, **settings):
        """Run folder, its metrics and the seconds from the last step to the end of the process, which saves the state.

        save_seconds: the limit of the save, beyond which it is ended and the third is None; None: it counts towards that of the part."""
        process, run = self.start(self.config(preset, vocab, steps, **settings), like)
        end = time.monotonic() + self.seconds
        try:
            log = lambda: pathlib.Path(f"{run}.log").read_text()[-1500:]
            while len(lines(run / "metrics.jsonl")) < steps:
                expect(process.poll() is None or len(lines(run / "metrics.jsonl")) == steps,
                       f"exit code {process.returncode}: {self.command}\n{log()}")
                expect(time.monotonic() < end, f"not {steps} steps after {self.seconds:.0f} s: {self.command}\n{log()}")
                time.sleep(0.02)
            last = time.monotonic()
            status = run / "control/status.json"
            node = json.loads(status.read_text())["nodes"][0] if status.exists() else {}
            self.health = (node.get("health") or {}).get("gpus")
            try:
                process.wait(max(1, end - last) if save_seconds is None else save_seconds)
            except subprocess.TimeoutExpired:
                expect(save_seconds is not None, f"all steps are done, but the process did not end within {time.monotonic() - last:.0f} s: {self.command}")
                return run, lines(run / "metrics.jsonl"), None
            expect(process.returncode == 0, f"exit code {process.returncode}: {self.command}\n{log()}")
            return run, lines(run / "metrics.jsonl"), round(time.monotonic() - last, 2)
        finally:
            self.end(process, SAVE_SECONDS if save_seconds is None else 1)

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

    def choose_model(self):
        """The largest model whose states and checkpoint have room; sets self.model and self.saves, a folder on disk or None for /dev/shm."""
        if self.rehearse:
            self.model = ("micro", 1e6, 4096, True)
            return
        model, why = machine.choose_model(shutil.disk_usage("/dev/shm").free, machine.host_memory(), shutil.disk_usage(self.folder).free)
        if why:
            self.figures["smaller_model"] = why
        expect(model, why)
        self.model = model

    # ---- the parts ----

    def machine(self):
        """What the other parts need of the driver, the libraries and the host."""
        driver = {"rehearsed": True} if self.rehearse else machine.driver()
        self.figures.update(driver, **machine.facts(), python=machine.find_python(machine.our_torch()))
        if not self.rehearse:
            expect(not (why := machine.problem(driver)), why)
        self.command = "ldd -r"
        for name in ("simplescale", "simplescale-compute", *(() if self.rehearse else ("libsimplescale_cuda.so", "libsimplescale_nccl.so"))):
            file = self.bin / name
            expect(file.exists(), f"{self.bin} has no {name}: ./simplescale build, or --build")
            try:
                out = call(["ldd", "-r", file], self.seconds / 2)
            except Late as error:  # a cold disk, which does not make the machine unfit
                self.figures["ldd"] = str(error)
                break
            wrong = [line.strip() for line in out.splitlines() if "not found" in line or f"({file})" in line and "undefined" in line]
            expect(not wrong, f"{file.name}: {len(wrong)} libraries or symbols are missing, for example: {'; '.join(wrong[:5])}")

    # ---- the parts ----

    def tests(self):
        command = [self.bin / "test_nccl", "-tc=*lost*"] if self.rehearse else [self.bin / "test_gpu", "-tce=*100 times*"]
        self.command = " ".join(map(str, command))
        self.figures["result"] = call(command, self.seconds).strip().splitlines()[-3:]

    def kernels(self):
        """Each kernel at TinyLlama's shapes: its time, and its share of a measured copy or of a large product; each product's algorithm."""
        command = [self.bin / ("gpu_bench_fake" if self.rehearse else "gpu_bench"), "tiny" if self.rehearse else "tinyllama"]
        self.command = " ".join(map(str, command))
        out = call(command, self.seconds, stderr=subprocess.STDOUT)
        rows, chosen = json_lines(out), products.chosen(out)
        expect(rows and all({"kernel", "ms", "share"} <= set(row) for row in rows), f"not a table of kernels: {rows[:2]}")
        expect(chosen, "no product was measured")
        self.figures.update(table=[f"{r['kernel']:38}{r['ms']:10.3f} ms {100 * r['share']:6.1f} % of {r['of']}" for r in rows] + products.table(chosen),
                            rows=rows, products=chosen)

    def large_model(self, samples, steps, save_seconds=1, **settings):
        """TinyLlama, or a smaller model, in steps of `samples` samples: speed, memory, its estimate, and the time of the final save if it may take that long.

        Without copies of the state: until its 27 GB are registered with the driver, 20 s or so, they are slow, and other calls wait."""
        if not self.model:
            self.choose_model()
        preset, _, vocab, in_memory = self.model
        saves, peak, over = pathlib.Path(tempfile.mkdtemp(prefix="gpu-checklist-", dir="/dev/shm" if in_memory else self.folder)), {}, threading.Event()
        thread = threading.Thread(target=self.watch_gpu, args=(peak, over))
        thread.start()
        try:
            run, metrics, save_s = self.train(preset, vocab, steps, save_seconds, like=self.measured, **{"metrics__health_every_ms": 500, "train__micro_batch_size": 8, "train__global_batch_size": samples,
                                                 "checkpoint__folder": str(saves), "checkpoint__memory_every_steps": 0, **settings})
        finally:
            over.set()
            thread.join()
            shutil.rmtree(saves, ignore_errors=True)
        warm = min(5, steps // 2)
        step_ms = statistics.median(b["time"] - a["time"] for a, b in zip(metrics[warm - 1:], metrics[warm:])) * 1e3
        shown = call([self.program, "config", "show", f"{run}.toml"], 60)
        estimate = re.search(r"memory +(about ([\d.]+) (\w+) per .*)", shown)
        expect(estimate, "config show has no line `memory`")
        log = (run / "logs/n0.0.log").read_text()
        figures = {"model": preset, "loss": metrics[-1]["loss"], "step_ms": round(step_ms, 2), "tokens_per_second": round(metrics[-1]["tokens"] / steps / step_ms * 1e3),
                   "mfu_palm": metrics[-1]["mfu"], "breakdown": self.breakdown(run), "final_save_s": save_s,
                   "gpu_peak_mib": peak.get("memory.used", 0), "watts": peak.get("power.draw"), "estimate": estimate[1],
                   "estimate_mib": float(estimate[2]) * {"KiB": 2**-10, "MiB": 1, "GiB": 2**10}[estimate[3]],
                   "products_gain": products.gain(products.chosen(log)), "attention": re.findall(r"attention of .* is used", log),
                   "gpu_health": self.health}
        self.figures.update(figures)
        expect(self.rehearse or figures["gpu_health"], "status.json has no GPU's health")
        expect(not self.peak_flops or figures["mfu_palm"] is not None, "no MFU")
        expect(self.rehearse or self.measured or figures["products_gain"] is not None, "the trainer did not say which algorithms its products take")
        expect(self.rehearse or self.measured or len(figures["attention"]) >= 2, "the trainer did not say which kernels attention's passes take")
        self.measured = run
        return run

    def speed(self, **settings):
        self.large_model(64, 6 if self.rehearse else 12, **settings)

    def speed_one(self):
        run = self.large_model(2 if self.rehearse else 8, 6 if self.rehearse else 24, SAVE_SECONDS, metrics__trace_steps=[4, 5] if self.rehearse else [20, 21])
        expect(self.figures["final_save_s"], f"the final save took longer than {SAVE_SECONDS} s, and was ended")
        self.trace_table(run)

    def trace_table(self, run):
        traces = sorted((run / "traces").glob("kernels-*.json"))
        expect(traces or self.rehearse, "no trace of kernels was written")
        self.figures["kernels"] = kernel_trace.table(traces[0]) if traces else []

    def large_batch(self):
        """4 micro-batches a step, each as large as the GPU's memory takes."""
        samples = 2 if self.rehearse else 48 if machine.driver().get("memory_mib", 0) > 130_000 else 24
        self.figures["micro_batch_size"] = samples
        self.large_model(4 * samples, 6 if self.rehearse else 8, train__micro_batch_size=samples)

    def native(self):
        """With NCCL's sums and attention that need not be deterministic: bits may differ between runs."""
        self.large_model(2 if self.rehearse else 8, 6 if self.rehearse else 24, train__deterministic=False)

    def fp8(self):
        """`speed` with products in fp8, which only Hopper GPUs make: its loss is near that of the same steps in bf16."""
        capability = machine.ask_smi("compute_cap").get("compute_cap", "9.0")
        if not self.rehearse and capability != "9.0":
            raise Skip(f"the GPU's compute capability is {capability}, and such products need 9.0")
        self.speed(train__fp8=True)
        loss, of_bf16 = self.figures["loss"], self.found.get("speed", {}).get("loss")
        expect(of_bf16 is None or abs(loss / of_bf16 - 1) < 0.02, f"the loss is {loss}, and {of_bf16} in bf16")

    def watch_gpu(self, peak, over):
        while not over.wait(1) and not self.rehearse:  # seldom: nvidia-smi takes the driver's time, too
            for field, value in machine.ask_smi("memory.used", "power.draw").items():
                if re.fullmatch(r"[\d.]+", value):
                    peak[field] = max(peak.get(field, 0), float(value))

    def pytorch(self):
        """fsdp_baseline.py on the model of the parts before, eager and compiled."""
        peers, python = self.flags.peers.resolve(), machine.find_python()
        if not (peers / "fsdp_baseline.py").exists():
            raise Skip(f"no fsdp_baseline.py in {peers} (--peers)")
        if not python:
            raise Skip("no python3 with torch and numpy")
        shape = ["--config", self.model[0] if self.model else "tinyllama", "--micro_batch_size", 8, "--device", "cuda", "--steps", 14, "--warmup", 4]
        if self.rehearse:
            shape = ["--config", "micro", "--block_size", 32, "--micro_batch_size", 2, "--steps", 3, "--warmup", 1]
        figures = self.figures
        for way in ("eager", *([] if self.rehearse else ["compile"])):  # inductor takes a minute on a CPU
            command = [python, "fsdp_baseline.py", *shape, "--dtype", "float32" if self.rehearse else "bfloat16", *(["--compile"] if way == "compile" else [])]
            self.command = " ".join(map(str, command))
            figures[way] = json_lines(call(command, self.seconds * (0.4 if way == "eager" else 0.6), cwd=peers, env=os.environ))[-1]
            ours = self.found.get("speed_one", {}).get("tokens_per_second")
            if ours:
                figures[f"ours_to_{way}"] = round(ours / figures[way]["tokens_per_second"], 3)

    def runs(self):
        cuda, ours, _ = self.train("mini", 8192, 20, train__precision="fp32")
        again, _, _ = self.train("mini", 8192, 20, like=cuda, train__precision="fp32")
        half, bf16, _ = self.train("mini", 8192, 20)
        cpu, theirs, _ = self.train("mini", 8192, 20, train__precision="fp32", cluster__device="cpu")
        apart = max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, theirs))
        self.figures.update(fp32_from_cpu=apart, bf16_from_fp32=max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, bf16)),
                            repeats_its_bits=self.digest(cuda) == self.digest(again),
                            measured_again=len(products.chosen((again / "logs/n0.0.log").read_text())), loss=[ours[0]["loss"], ours[-1]["loss"]])
        expect(len(ours) == len(theirs) == 20 and apart < 1e-3, "losses are too far from the CPU's")
        expect(self.figures["repeats_its_bits"], "two runs of the same configuration end with different bits")
        expect(not self.figures["measured_again"], "the second run has measured products although the first one's choices were there")

    def auto(self):
        """What a user gets who sets neither device nor strategy, and what `doctor` tells the user of this machine."""
        run, metrics, _ = self.train("mini", 8192, 10, cluster__device="auto", parallel__strategy="auto")
        self.figures["trainer"] = re.findall(r"uses GPU .*", (run / "logs/n0.0.log").read_text())
        self.figures["loss"] = [metrics[0]["loss"], metrics[-1]["loss"]]
        self.figures["config"] = re.findall(r"(?:cluster.device|parallel.strategy|memory|strategy)  .*", call([self.program, "config", "show", f"{run}.toml"], 60), re.M)
        self.figures["doctor"] = call([self.program, "doctor", f"{run}.toml", f"--run={run}-doctor"], self.seconds / 2).splitlines()
        expect(self.rehearse or self.figures["trainer"], "no GPU was taken")

    def waves(self):
        """Four micro-batches that pass each unit together end with the bits of one after the other; of two trainers by NCCL, too."""
        batch = dict(train__micro_batch_size=2, train__global_batch_size=16, train__warmup_iters=0)
        os.environ["SIMPLESCALE_NCCL_ON_SHARED_GPU"] = "1"
        try:
            for precision in ("fp32", "bf16"):
                one, _, _ = self.train("micro", 4096, 12, train__precision=precision, **batch)
                for trainers in (1, 2):
                    run, _, _ = self.train("micro", 4096, 12, like=one, train__precision=precision, parallel__wave=4, cluster__trainers_per_node=trainers, **batch)
                    self.figures[f"{precision}_{trainers}"] = {"same_bits": self.digest(one) == self.digest(run), "step_ms": self.breakdown(run)["step_ms"]}
        finally:
            del os.environ["SIMPLESCALE_NCCL_ON_SHARED_GPU"]
        expect(all(f["same_bits"] for f in self.figures.values()), "other bits than those of one micro-batch after the other")

    def shared_gpu(self):
        """2 x 2 trainers on one GPU, through host memory; then one of them is killed, and a process with a CUDA context replaces it."""
        batch = dict(train__precision="fp32", train__micro_batch_size=2, train__global_batch_size=8, train__warmup_iters=0)
        layout = dict(cluster__nodes=2, cluster__trainers_per_node=2, parallel__strategy="hybrid_shard", parallel__group_nodes=1, **batch)
        one, _, _ = self.train("micro", 4096, 20, **batch)
        four, _, _ = self.train("micro", 4096, 20, like=one, **layout)
        self.figures["same_bits"] = self.digest(one) == self.digest(four)
        expect(self.figures["same_bits"], "2 x 2 trainers end with other bits than 1 x 1")
        self.kill("n1.0", 10, lambda step_ms: True, self.config("micro", 4096, 100_000, supervision__warm_context=True, **layout))

    def recovery(self):
        """The model of the speed parts with a copy of its state in host memory at every step; its trainer is killed."""
        if not self.model:
            self.choose_model()
        preset, _, vocab, _ = self.model
        config = self.config(preset, vocab, 100_000, supervision__warm_context=True, metrics__trace_steps=[15, 16],
                             train__micro_batch_size=8, train__global_batch_size=8)
        # Copies wait for each other until the memory is pinned.
        run = self.kill("n0.0", 25, lambda step_ms: max(step_ms[-8:]) < 1000, config, save_seconds=1, like=self.measured)
        self.trace_table(run)

    def kill(self, trainer, steps, ready, config, save_seconds=SAVE_SECONDS, like=None):
        """Kills a trainer once `steps` steps are made and ready(ms of each) holds: ms until the next step. like: see start()."""
        process, run = self.start(config, like)
        end = time.monotonic() + self.seconds - 5
        try:
            def trained():
                times = [line["time"] for line in lines(run / "metrics.jsonl")]
                step_ms = [1e3 * (b - a) for a, b in zip(times, times[1:])]
                return len(step_ms) >= steps and ready(step_ms) and step_ms
            self.figures["step_ms"] = statistics.median(wait_until(trained, end, process, f"the run did not make {steps} good steps")[-8:])
            status = json.loads((run / "control/status.json").read_text())
            pid = next(t["pid"] for n in status["nodes"] for t in n["trainers"] if t["name"] == trainer)
            os.kill(pid, signal.SIGKILL)
            phase = lambda name: next((e for e in lines(run / "events.jsonl") if e["phase"] == name), None)
            resumed = wait_until(lambda: phase("resume"), end, process, "the run did not resume after the kill")
            self.figures.update(kill_to_next_step_ms=resumed["ms"] - phase("detect")["ms"], what=resumed["reason"],
                                phases={e["phase"]: e["ms"] for e in lines(run / "events.jsonl") if e["phase"]})
            refused = next((line for log in (run / "logs").glob("*.log") for line in log.read_text().splitlines() if re.search(NOT_WARM, line)), None)
            expect(not refused, f"a waiting process is not ready: {refused}")
            # What a process logged before it became a trainer lies in a file of its own, which the process wrote last when it left it.
            became = [log for log in (run / "logs").glob("*.log") if re.search(rf"this log continues in .*/{re.escape(trainer)}\.log", log.read_text())]
            replaced_by = max(became, key=lambda log: log.stat().st_mtime, default=None)
            expect(self.rehearse or replaced_by and "made a context beforehand" in replaced_by.read_text(), f"the process that replaced {trainer} had made no CUDA context: {replaced_by}")
            ready = re.search(r"made NCCL ready beforehand on GPU \d+ in (\d+) ms", replaced_by.read_text() if replaced_by else "")
            self.figures["nccl_beforehand_ms"] = int(ready[1]) if ready else None  # None: through host memory, or not ready yet
            return run
        finally:
            self.end(process, save_seconds)

    def ranks(self):
        """NCCL between ranks that share this GPU: it takes them for hosts (kNcclOnSharedGpu), and connects them by sockets.

        Same bits as one trainer's in each layout, also by Muon; NCCL's own sums; one of four is killed. No figure is one of speed."""
        os.environ["SIMPLESCALE_NCCL_ON_SHARED_GPU"] = "1"
        try:
            self.trained_by_ranks()
        finally:
            del os.environ["SIMPLESCALE_NCCL_ON_SHARED_GPU"]

    def trained_by_ranks(self):
        figures, losses, batch = self.figures, {}, dict(train__micro_batch_size=2, train__global_batch_size=8, train__warmup_iters=0)
        layouts = {"1x2": dict(cluster__trainers_per_node=2), "1x4": dict(cluster__trainers_per_node=4),
                   "2x2": dict(cluster__nodes=2, cluster__trainers_per_node=2, parallel__strategy="hybrid_shard", parallel__group_nodes=1)}
        runs = [("fp32", dict(train__precision="fp32"), ("1x2", "1x4", "2x2")), ("bf16", {}, ("2x2",)), ("muon", dict(train__optimizer="muon"), ("1x2", "2x2"))]
        by_nccl = []
        for name, settings, of in runs:
            one, metrics, _ = self.train("micro", 4096, 12, **batch, **settings)
            losses[name] = metrics[-1]["loss"]
            for layout in of:
                many, _, _ = self.train("micro", 4096, 12, like=one, **batch, **settings, **layouts[layout])
                by_nccl.append(self.by_nccl(many))
                figures[f"{name}_{layout}"] = {"same_bits": self.digest(one) == self.digest(many), "step_ms": self.breakdown(many)["step_ms"]}
        run, native, _ = self.train("micro", 4096, 12, train__deterministic=False, **batch, **layouts["2x2"])
        by_nccl.append(self.by_nccl(run))
        figures["native_from_bf16"] = abs(native[-1]["loss"] - losses["bf16"])
        expect(figures["native_from_bf16"] < 1e-2, "NCCL's own sums give other losses")
        expect(all(f["same_bits"] for f in figures.values() if isinstance(f, dict)), "other bits than those of one trainer")
        expect(self.rehearse or all(by_nccl), f"trainers did not use NCCL: {by_nccl}")
        self.kill("n1.0", 10, lambda step_ms: True, self.config("micro", 4096, 100_000, supervision__warm_context=True, **batch, **layouts["2x2"]))

    def by_nccl(self, run):
        """True if the trainers say so."""
        log = "".join(each.read_text() for each in (run / "logs").glob("*.log"))
        return "collectives go through NCCL" in log and "collectives go through host memory" not in log

    def nccl(self):
        """Communicators of one rank, made, used and closed or aborted 100 times."""
        command = [self.bin / "test_nccl", "-tc=*lost*"] if self.rehearse else [self.bin / "test_gpu", "-tc=*100 times*"]
        self.command = " ".join(map(str, command))
        self.figures["nccl_one_rank"] = json_lines(call(command, self.seconds))
        expect(self.figures["nccl_one_rank"] or self.rehearse, "the test printed no figures")

    def snapshots(self):
        """Checkpoints on disk off and at every step. The copy of each state to host memory has no switch: rest_ms is its cost."""
        figures = self.figures
        for name, every in (("off", 0), ("every_step", 1)):
            run, metrics, _ = self.train("mini", 8192, 20, checkpoint__disk_every_steps=every, checkpoint__keep=1)
            figures[name] = self.breakdown(run)
        figures["every_step_to_off"] = round(figures["every_step"]["step_ms"] / figures["off"]["step_ms"], 4)

    def memory(self):
        """The peak of the speed part against the estimate of `config show`; the peak has the CUDA contexts, too."""
        speed = self.found.get("speed", {})
        if not speed.get("gpu_peak_mib") and not (self.rehearse and speed):
            raise Skip("the part `speed` has no figures of memory")
        self.command = "nvidia-smi --query-gpu=memory.used; simplescale config show"
        ratio = speed["gpu_peak_mib"] / speed["estimate_mib"]
        self.figures["peak_to_estimate"] = round(ratio, 4)
        expect(self.rehearse or 0.95 < ratio < 1.05, f"peak {speed['gpu_peak_mib']} MiB, estimate {speed['estimate_mib']} MiB")

    def sanitizer(self):
        tool = shutil.which("compute-sanitizer")
        if not tool:
            raise Skip("no compute-sanitizer")
        wrong = []
        for kind in ("memcheck", "racecheck", "initcheck"):
            self.command = f"compute-sanitizer --tool {kind} test_gpu --test-suite=kernels"
            try:
                out = call([tool, "--tool", kind, "--error-exitcode", 9, self.bin / "test_gpu", "--test-suite=kernels"], self.seconds / 3)
                self.figures[kind] = next((line for line in out.splitlines() if "SUMMARY" in line), "?")
            except Wrong as error:  # the other kinds still run
                wrong.append(str(error))
        expect(not wrong, "\n".join(wrong))


# name, what it checks, seconds at most
PARTS = [("machine", "driver, libraries, host", 60),
         ("tests", "kernels, backend, engine", 120),
         ("speed", "TinyLlama, 8 micro-batches a step", 120),
         ("speed_one", "TinyLlama, one micro-batch a step", 90),
         ("large_batch", "TinyLlama, the largest micro-batches", 120),
         ("memory", "peak against the estimate", 5),
         ("pytorch", "one micro-batch in PyTorch, eager and compiled", 110),
         ("kernels", "each kernel against its limit", 25),
         ("runs", "losses as on the CPU, twice the same bits", 70),
         ("recovery", "TinyLlama's trainer is killed", 120),
         ("ranks", "NCCL between ranks on this GPU; one killed", 120),
         ("waves", "4 micro-batches a unit; by NCCL, too", 60),
         ("shared_gpu", "2 x 2 trainers on one GPU; one killed", 60),
         ("auto", "neither device nor strategy is set; doctor", 60),
         ("native", "speed_one with train.deterministic = false", 80),
         ("fp8", "TinyLlama with products in fp8", 110),
         ("snapshots", "checkpoints off and at every step", 30),
         ("nccl", "communicators made and aborted 100 times", 90),
         ("sanitizer", "memcheck, racecheck, initcheck", 60)]
NEEDED = ("machine",)  # without these no other part can succeed


def told(figures):
    """The lines of a part's table on the terminal."""
    table, kernels = figures.get("table", []), figures.get("kernels", [])
    return [*table, *(f"{k}: {v}" for k, v in figures.items() if not table and v is not kernels), *kernels]


def say(text):
    """On the terminal, which may be gone: the report has the figures, too."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")


class Report:
    """The JSON file, which is whole at any time, and the table on the terminal."""

    def __init__(self, path, **head):
        self.path, self.content, self.written = path, {**head, "parts": []}, True

    def write(self):
        other = self.path.with_name(self.path.name + ".new")
        try:
            other.write_text(json.dumps(self.content, indent=1) + "\n")
            os.replace(other, self.path)
        except OSError as error:  # the table and, at the end, the terminal have the figures
            if self.written:
                say(f"cannot write {self.path}: {error.strerror}; the report is printed at the end")
            self.written = False

    def begin(self, name):
        self.content["parts"].append({"part": name, "verdict": "RUNNING"})
        self.write()

    def end(self, what, **part):
        self.content["parts"][-1].update(part)
        lines = [*told(part["figures"]), *filter(None, [part["why"]])]
        self.write()
        say("\n            ".join([f"{part['verdict']:8}{part['seconds']:6.1f} s  {self.content['parts'][-1]['part']:12}{what}", *lines]))

    def verdicts(self):
        return [part["verdict"] for part in self.content["parts"]]


def run_part(checks, name, reason_to_skip):
    """Verdict and reason of one part."""
    checks.command, checks.figures = "", {}
    try:
        if reason_to_skip:
            raise Skip(reason_to_skip)
        getattr(checks, name)()
        return "ok", ""
    except Skip as skip:
        return "SKIPPED", str(skip)
    except Stopped as stopped:
        return "STOPPED", f"{stopped} ended the checklist"
    except Exception as error:  # fails this part; the next ones still run
        return "FAILED", f"{type(error).__name__}: {error}" if not isinstance(error, Wrong) else str(error)
    finally:
        checks.found[name] = checks.figures
        if left := end_all():
            checks.figures["killed_processes"] = left


def run_parts(checks, report, parts, begun):
    """Until a signal stops them."""
    for name, what, limit in parts:
        at, why = time.monotonic(), ""
        checks.seconds = SECONDS if checks.rehearse else min(limit, checks.flags.seconds - (at - begun))  # the CPU may be busy
        failed = [part["part"] for part in report.content["parts"] if part["part"] in NEEDED and part["verdict"] == "FAILED"]
        if not report.content["gpu"]:
            why = "no GPU"
        elif failed:
            why = f"the part `{failed[0]}` failed"
        elif checks.seconds < min(limit, 10):
            why = "no time left"
        report.begin(name)
        verdict, why = run_part(checks, name, why)
        report.end(what, verdict=verdict, seconds=round(time.monotonic() - at, 1), why=why, figures=checks.figures, command=checks.command)
        if verdict == "STOPPED":
            return


def main():
    a = argparse.ArgumentParser(description="The GPU checklist.")
    a.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    a.add_argument("--peers", type=pathlib.Path, default=ROOT / "tests/bench/peers")
    a.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-checklist.json"))
    a.add_argument("--seconds", type=int, default=SECONDS, help="for all parts together; what has no time left is skipped")
    a.add_argument("--rehearse", action="store_true", help="on the CPU, with a tiny model: no figure means anything")
    a.add_argument("--part", action="append", choices=[p[0] for p in PARTS], help="run only this part; may be repeated")
    a.add_argument("--keep", action="store_true", help="keep the folders of the runs, and say where they are")
    a.add_argument("--libraries", action="store_true", help="print the folders of libtorch's libraries only")
    flags = a.parse_args()
    if flags.libraries:
        python = machine.find_python(machine.our_torch())
        print(machine.torch_libraries(python) if python else f"no python3 with torch {machine.our_torch()} and numpy is found",
              file=sys.stdout if python else sys.stderr)
        return 0 if python else 1
    begun, driver = time.monotonic(), {} if flags.rehearse else machine.driver()
    device = REHEARSED_GPU if flags.rehearse else driver.get("name", "a GPU") if machine.has_gpu(driver) else None
    if device and not flags.rehearse and (command := machine.own_shared_memory([sys.executable, "-B", *sys.argv])):
        os.execvpe(command[0], command, {**os.environ, machine.ASKED: "1"})
    flags.build = flags.build.resolve()
    prepare()
    checks, packed = Checklist(flags, device), ROOT / "COMMIT"  # pack.sh writes it
    commit = packed.read_text().strip() if packed.exists() else subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    report = Report(flags.out, gpu=device, commit=commit, date=time.strftime("%Y-%m-%d"))
    run_parts(checks, report, [part for part in PARTS if not flags.part or part[0] in flags.part], begun)
    if flags.keep:
        say(f"the runs are in {checks.folder}")
    else:
        shutil.rmtree(checks.folder, ignore_errors=True)
    say(f"{device or 'no GPU'}; {flags.out}" if report.written else json.dumps(report.content))
    verdicts = report.verdicts()
    return 1 if {"FAILED", "STOPPED"} & set(verdicts) else 77 if "ok" not in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
