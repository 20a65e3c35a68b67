#!/usr/bin/env python3
"""bench tokenizer: MB/s of text that becomes ids on one core, beside Hugging Face's tokenizers.

    ./simplescale bench tokenizer [--bytes 10000000] [--rounds 3]

Trains small tokenizers of the kinds that public models use (tests/runtime/tokenizer/reference.py), on prose, code and many
scripts, then encodes such texts with both, one after the other, several times. CPU time of one thread; the best round counts.
Prints one JSON line for each tokenizer, then the table.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import table

ROOT = Path(__file__).resolve().parents[2]


def rates(*command):
    """MB/s by tokenizer, from the JSON lines that the command prints."""
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line["tokenizer"]: line["mb_s"] for line in map(json.loads, lines)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(flags.rounds):
            theirs = rates(sys.executable, "-B", str(ROOT / "tests/runtime/tokenizer/reference.py"), folder, "--time",
                           f"--bytes={flags.bytes}")
            ours = rates(str(ROOT / "build/release/bin/tokenizer_bench"), folder)
            for name in ours:
                old = best.get(name, (0, 0))
                best[name] = (max(old[0], ours[name]), max(old[1], theirs[name]))
    rows = []
    for name, (our, their) in best.items():
        print(json.dumps({"tokenizer": name, "simplescale_mb_s": round(our, 2), "tokenizers_mb_s": round(their, 2)}))
        rows.append([name, f"{our:.1f}", f"{their:.1f}", f"{our / their:.1f}"])
    print(table(["tokenizer", "simplescale MB/s", "tokenizers MB/s", "times"], rows))


if __name__ == "__main__":
    main()
