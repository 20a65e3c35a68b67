#!/usr/bin/env python3
"""bench tokenizer: MB/s of text that becomes ids on one core, beside Hugging Face's tokenizers.

    ./simplescale bench tokenizer [--bytes 10000000] [--rounds 3] [--prepare-only]

Trains small tokenizers of the kinds that public models use (tests/runtime/tokenizer/reference.py), on prose, code and many
scripts, then encodes such texts with both, one after the other, several times. CPU time of one thread; the best round counts.
Then the same texts as lines of JSON become token files, with some of the tokenizers: by one worker in the way of Megatron-LM
(peers/megatron_preprocess.py, without its start), and by `simplescale prepare --jobs=1` (the CPU time of the whole program).
The ids of both are compared. Prints one JSON line for each row, then the tables.
"""
import argparse
import json
import resource
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import call, table

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "build/release/bin"
PREPARED = ["gpt2", "llama2", "llama3", "mistral", "qwen2"]
HEADER = 1024  # bytes of a prepared token file


def rates(*command):
    """MB/s by tokenizer, from the JSON lines that the command prints."""
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line["tokenizer"]: line["mb_s"] for line in map(json.loads, lines)}


def write_rows(folder):
    """The texts of reference.py as lines of JSON. Returns the file and the bytes of the texts."""
    data, at, total = (folder / "texts.bin").read_bytes(), 0, 0
    with open(folder / "rows.jsonl", "w") as out:
        while at < len(data):
            size = struct.unpack_from("<I", data, at)[0]
            if size:  # `prepare` leaves out rows without text
                out.write(json.dumps({"text": data[at + 4:at + 4 + size].decode()}) + "\n")
            at, total = at + 4 + size, total + size
    return folder / "rows.jsonl", total


def prepare_rates(folder, rows, size, name):
    """MB/s of both ways to make a token file. Fails if the ids differ."""
    tokenizer, prepared = folder / f"{name}.json", folder / f"{name}-prepared"
    config = folder / "prepare.toml"
    config.write_text('[model]\npreset = "micro"\nvocab = 32768\n[train]\nmax_steps = 1\n')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call([BIN / "simplescale", "prepare", config, "--jobs=1", f'--data.source="{rows}"', f'--data.folder="{prepared}"',
          f'--tokenizer.path="{tokenizer}"', "--data.validation_fraction=0"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    ours = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    ids = (prepared / "train.bin").read_bytes()[HEADER:]
    eos = json.loads((prepared / "manifest.json").read_text()).get("appended_eos", -1)
    bos = struct.unpack_from("<H", ids)[0]
    theirs = json.loads(call([sys.executable, "-B", ROOT / "tests/bench/peers/megatron_preprocess.py", rows, tokenizer, folder / name,
                              f"--bos={bos}", f"--eos={eos}"]))
    if (folder / f"{name}.bin").read_bytes() != ids:
        raise SystemExit(f"{name}: the ids differ")
    for file in (prepared / "manifest.json", prepared / "train.bin"):
        file.unlink()
    return size / 1e6 / ours, size / 1e6 / theirs["cpu_s"]


def compare(kind, peer, best):
    """Prints the rows and the table of {name: (ours, theirs)}."""
    rows = []
    for name, (our, their) in best.items():
        print(json.dumps({"kind": kind, "tokenizer": name, "simplescale_mb_s": round(our, 2), f"{peer}_mb_s": round(their, 2)}))
        rows.append([name, f"{our:.1f}", f"{their:.1f}", f"{our / their:.1f}"])
    print(table([kind, "simplescale MB/s", f"{peer} MB/s", "times"], rows))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prepare-only", action="store_true", help="only token files")
    flags = parser.parse_args()
    encode, prepare = {}, {}

    def keep(best, name, pair):
        best[name] = tuple(map(max, pair, best.get(name, (0, 0))))

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(flags.rounds):
            theirs = rates(sys.executable, "-B", str(ROOT / "tests/runtime/tokenizer/reference.py"), folder, "--time",
                           f"--bytes={flags.bytes}")
            ours = {} if flags.prepare_only else rates(str(BIN / "tokenizer_bench"), folder)
            for name in [each for each in ours if each in theirs]:  # trained.json is for a test only
                keep(encode, name, (ours[name], theirs[name]))
            rows, size = write_rows(Path(folder))
            for name in PREPARED:
                keep(prepare, name, prepare_rates(Path(folder), rows, size, name))
    compare("encode", "tokenizers", encode)
    compare("prepare", "megatron", prepare)


if __name__ == "__main__":
    main()
