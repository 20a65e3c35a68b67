"""What the benchmarks share: our program and the PyTorch baseline started with the same model, data and schedule.

`Ours` writes a TOML config and starts `simplescale train` in a folder of its own; `Peer` starts fsdp_baseline.py in its
fastest environment. Both give back a Run: losses and wall time by step.
"""

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
    "mini": (256, 8192, 8),
}


def add_flags(parser):
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="the build folder")
    parser.add_argument("--peers", type=Path, default=ROOT / "tests/bench/peers", help="where fsdp_baseline.py lies")
    parser.add_argument("--python", type=Path, default=ROOT / ".deps/python/bin/python", help="has torch and numpy")
    parser.add_argument("--work", type=Path, default=ROOT / "build/bench", help="run folders; emptied as it goes")


@dataclass
class Run:
    """One finished run. losses[s]: mean loss of step s, from 0. tokens_per_second: of the steps after the warm-up."""

    losses: list[float]
    tokens_per_second: float
    step_ms: list[float] = field(default_factory=list)
    folder: Path | None = None


class Failed(Exception):
    pass


def call(command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        text = " ".join(map(str, command))
        raise Failed(f"exit code {done.returncode}: {text}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return done.stdout


def toml(value):
    return json.dumps(value) if not isinstance(value, list) else "[" + ", ".join(map(toml, value)) + "]"


class Ours:
    """Runs `simplescale train`. data: raw uint16 tokens, taken in file order."""

    def __init__(self, flags, data):
        self.program, self.work, self.data = flags.build / "bin/simplescale", flags.work, data
        self.number = itertools.count()
        if not self.program.exists():
            raise SystemExit(f"{self.program} is missing: ./simplescale build, or say where with --build")

    def train(self, preset, nodes, trainers, steps, warmup, start=None, keep=False, **settings):
        """start: a checkpoint to begin with. settings: section__key=value. A group is one node unless told otherwise."""
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
            raise Failed(f"{run}/metrics.jsonl does not have steps 1 to {steps}")
        tokens = lines[-1]["tokens"] / steps
        timed = [b["time"] - a["time"] for a, b in zip(lines[warmup - 1 :], lines[warmup:])]
        result = Run([line["loss"] for line in lines], tokens * len(timed) / sum(timed), [1e3 * t for t in timed], run)
        if not keep:
            shutil.rmtree(run)
        return result


class Peer:
    """Runs fsdp_baseline.py in fast_env.sh. ways: "tuned", "direct", "compile", "direct compile"."""

    def __init__(self, flags, data):
        self.folder, self.python, self.data = flags.peers.resolve(), flags.python.absolute(), data
        if not (self.folder / "fsdp_baseline.py").exists():
            raise SystemExit(f"{self.folder} has no fsdp_baseline.py: say where with --peers")

    def train(self, preset, processes, steps, warmup, way="tuned", flags=()):
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
            raise Failed("the baseline printed no result")
        return Run(losses, last["tokens_per_second"], steps_ms[warmup:])


def write_tokens(flags, preset, vocab=None):
    """The baseline's synthetic tokens of the preset's vocabulary, or of another, as a file."""
    sys.path.insert(0, str(flags.peers))
    from presets import synthetic_tokens

    flags.work.mkdir(parents=True, exist_ok=True)
    file = flags.work / f"tokens-{preset}.bin"
    synthetic_tokens(vocab or PRESETS[preset][1]).tofile(file)
    return file.absolute()


def table(head, rows):
    """Markdown; columns after the first are aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def median_ratio(ours, theirs):
    """Of runs that took turns: the median of the rounds' ratios is steadier than the ratio of the medians."""
    return statistics.median(a / b for a, b in zip(ours, theirs))
