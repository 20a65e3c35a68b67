"""Saves and loads a state of preset small with PyTorch's DCP, in one process: FOLDER THREADS.

The opponent of checkpoint_bench. Prints the fastest of three saves and of three loads.
"""

import resource
import shutil
import sys
import time

import torch
import torch.distributed.checkpoint as dcp

UNITS = [24_576_000] + [6_292_992] * 12 + [24_576_768]  # elements: embedding, layers, head
PARTS = ("params", "exp_avg", "exp_avg_sq")


def cpu_seconds():
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def main():
    folder, threads = sys.argv[1], int(sys.argv[2])
    state = {f"{part}.{unit}": torch.arange(count, dtype=torch.float32) for part in PARTS for unit, count in enumerate(UNITS)}
    gb = sum(tensor.nbytes for tensor in state.values()) / 1e9

    def save():
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, thread_count=threads), no_dist=True)

    def load():
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)

    for call in (save, load):
        times = []
        for _ in range(3):
            if call is save:
                shutil.rmtree(folder, ignore_errors=True)
            begin, cpu = time.perf_counter(), cpu_seconds()
            call()
            times.append((time.perf_counter() - begin, cpu_seconds() - cpu))
        seconds, cpu = min(times)
        print(f"{call.__name__}: {gb:.2f} GB, {seconds:.3f} s, {cpu:.3f} s of CPU")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
