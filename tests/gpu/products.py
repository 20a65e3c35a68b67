"""Which algorithms products took, as the CUDA library says when it has measured them (model/cuda/gemm.cpp)."""

import re

LINE = re.compile(r"product (.+?): (\d+ \(.*); (\d+ \([^)]*\)) is used")
TIME = re.compile(r"(\d+ \([^)]*\)) ([\d.]+) ms")


def chosen(text):
    """Of each product in this output: the algorithm that it takes, its ms, and the ms of the first one that works."""
    found = []
    for name, told, used in LINE.findall(text):
        ms = {algorithm: float(time) for algorithm, time in TIME.findall(told.partition("; under load")[0])}
        found.append({"product": name, "algorithm": used, "measured": len(ms), "ms": ms[used], "first_ms": next(iter(ms.values()))})
    return found


def table(products):
    return [f"{p['product']:38}{p['ms']:10.3f} ms {100 * (p['first_ms'] / p['ms'] - 1):6.1f} % faster than cuBLASLt's first choice: "
            f"{p['algorithm']} of {p['measured']}" for p in products]


def gain(products):
    """How much faster all of them together are, once each, than cuBLASLt's first choices."""
    return round(sum(p["first_ms"] for p in products) / sum(p["ms"] for p in products) - 1, 4) if products else None
