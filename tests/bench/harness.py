"""Shared parts of the benchmarks: start simplescale and the PyTorch baseline with the same model,
data and schedule.

`Ours` writes a TOML config and runs `simplescale train` in a new run folder. `Peer` runs
fsdp_baseline.py in its fastest environment. Both return a Run: losses and wall time of each step.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRESETS = {  # name -> (block_size, vocab, micro_batch_size)
    "micro": (256, 4096, 8),
    "moe-micro": (256, 4096, 8),
    "mini": (256, 8192, 8),
}


def parser(name, documentation):
    """The options that all benchmarks have. name: of the script; documentation: its docstring."""
    parser = argparse.ArgumentParser(prog=f"./simplescale bench {name}", description=documentation.splitlines()[0])
    add_flags(parser)
    return parser


def run_main(main):
    """Ends the process as main() says: its exit code, or the text of Failed."""
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(str(failure))


def add_flags(parser):
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="the build folder")
    parser.add_argument("--peers", type=Path, default=ROOT / "tests/bench/peers", help="folder of fsdp_baseline.py")
    parser.add_argument("--python", type=Path, default=ROOT / ".deps/python/bin/python", help="Python with torch and numpy")
    parser.add_argument("--work", type=Path, default=ROOT / "build/bench", help="folder for run folders, which are overwritten")


@dataclass
class Run:
    """A finished run.

    losses[s]: mean loss of step s, counted from 0. tokens_per_second and step_ms: of the steps
    after the warm-up. folder: the run folder, which exists only if it was kept; None for a
    baseline.
    """

    losses: list[float]
    tokens_per_second: float
    step_ms: list[float] = field(default_factory=list)
    folder: Path | None = None


class Failed(Exception):
    """A measured program failed; the text is for the user."""


def call(command, **options):
    """Runs a command and returns its standard output. Failed: its exit code is not 0."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        text = " ".join(map(str, command))
        raise Failed(f"exit code {done.returncode}: {text}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return done.stdout


def toml(value):
    return json.dumps(value) if not isinstance(value, list) else "[" + ", ".join(map(toml, value)) + "]"


class Ours:
    """Runs `simplescale train`. data: file of raw uint16 tokens, trained in file order."""

    def __init__(self, flags, data):
        self.program, self.work, self.data = flags.build / "bin/simplescale", flags.work, data
        self.number = itertools.count()
        if not self.program.exists():
            raise SystemExit(f"{self.program} does not exist; run ./simplescale build, or pass --build FOLDER")

    def train(self, preset, nodes, trainers, steps, warmup, start=None, keep=False, **settings):
        """Trains `steps` steps, of which `warmup` are not timed.

        start: folder of a checkpoint to begin with. keep: keep the run folder. settings: config
        keys as section__key=value; parallel__group_nodes is 1 unless given.
        """
        run = self.work / f"run-{next(self.number)}"
        shutil.rmtree(run, ignore_errors=True)
        batch = PRESETS[preset][2]
        config = {
            "run": {"name": "bench"}, "model": {"preset": preset},
            "data": {"source": str(self.data), "format": "nanogpt", "shuffle": False, "validation_fraction": 0.0},
            "train": {"max_steps": steps, "warmup_iters": warmup, "micro_batch_size": batch, "learning_rate": 4e-4,
                      "min_learning_rate": 4e-5, "validation_samples": 0, "sample_tokens": 0},
            "parallel": {"strategy": "hybrid_shard", "group_nodes": 1},
            "cluster": {"nodes": nodes, "trainers_per_node": trainers, "device": "cpu"},
            "checkpoint": {"disk_every_steps": 0},
        }
        for key, value in settings.items():
            section, name = key.split("__")
            config.setdefault(section, {})[name] = value
        train = config["train"]  # warmup_iters counts the micro-batches of one trainer
        own = nodes * trainers * train["micro_batch_size"]
        train["warmup_iters"] = warmup * max(1, train.get("global_batch_size", own) // own)
        file = run.with_suffix(".toml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(
            f"[{section}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in keys.items()) for section, keys in config.items()))
        if start:
            shutil.copytree(start, run / "checkpoints/step-00000000")
        call([self.program, "train", file, f"--run={run}"])
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        if [line["step"] for line in lines] != list(range(1, steps + 1)):
            raise Failed(f"{run}/metrics.jsonl does not have exactly the steps 1 to {steps}")
        tokens = lines[-1]["tokens"] / steps
        timed = [b["time"] - a["time"] for a, b in zip(lines[warmup - 1 :], lines[warmup:])]
        result = Run([line["loss"] for line in lines], tokens * len(timed) / sum(timed), [1e3 * t for t in timed], run)
        if not keep:
            shutil.rmtree(run)
        return result


class Peer:
    """Runs fsdp_baseline.py in the environment of fast_env.sh."""

    def __init__(self, flags, data):
        self.folder, self.python, self.data = flags.peers.resolve(), flags.python.absolute(), data
        if not (self.folder / "fsdp_baseline.py").exists():
            raise SystemExit(f"{self.folder} has no fsdp_baseline.py; pass its folder with --peers")

    def train(self, preset, processes, steps, warmup, way="tuned", flags=()):
        """way: "tuned", "direct" (--direct-comm), "compile" or "direct compile"."""
        threads = max(1, os.cpu_count() // processes)
        command = [self.python, *(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
                                  if processes > 1 else []),
                   "fsdp_baseline.py", "--config", preset, "--data", self.data, "--steps", steps, "--warmup", warmup, *flags,
                   *(["--compile"] if "compile" in way else []), *(["--direct-comm"] if "direct" in way else [])]
        out = call(["bash", "-c", f'. ./fast_env.sh {threads}; exec "$@"', "bash", *command], cwd=self.folder)
        steps_ms, losses, last = [], [], None
        for line in out.splitlines():
            words = line.split()
            if line.startswith("step "):
                losses.append(float(words[3]))
                steps_ms.append(float(words[7]))
            elif line.startswith("{"):
                last = json.loads(line)
        if not last:
            raise Failed("fsdp_baseline.py printed no JSON line with its result")
        return Run(losses, last["tokens_per_second"], steps_ms[warmup:])


def write_tokens(flags, preset, vocab=None):
    """Writes the baseline's synthetic tokens to a file and returns its path.

    vocab: vocabulary size; None: that of the preset.
    """
    sys.path.insert(0, str(flags.peers))
    from presets import synthetic_tokens

    flags.work.mkdir(parents=True, exist_ok=True)
    file = flags.work / f"tokens-{preset}.bin"
    synthetic_tokens(vocab or PRESETS[preset][1]).tofile(file)
    return file.absolute()


def table(head, rows):
    """A Markdown table. All columns but the first are aligned right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def median_ratio(ours, theirs):
    """Median over the rounds of ours / theirs, where both ran in each round.

    It varies less than the ratio of the medians.
    """
    return statistics.median(a / b for a, b in zip(ours, theirs))
