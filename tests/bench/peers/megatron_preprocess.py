"""One worker of Megatron-LM's tools/preprocess_data.py: lines of JSON become PREFIX.bin (uint16) and PREFIX.idx.

    megatron_preprocess.py TEXT.jsonl TOKENIZER.json PREFIX [--bos ID] [--eos ID]

As there, a line is read by json.loads(), a tokenizer of Hugging Face encodes its text, the id of the end of a document is appended,
and NumPy writes the ids. --bos, --eos: the ids around each document. Prints the seconds of CPU that this took, without imports and
loading.
"""
import argparse
import json
import os
import struct
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy
from tokenizers import Tokenizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("tokenizer")
    parser.add_argument("prefix")
    parser.add_argument("--bos", type=int, default=-1)
    parser.add_argument("--eos", type=int, default=-1)
    flags = parser.parse_args()
    tokenizer = Tokenizer.from_file(flags.tokenizer)
    front, back = ([flags.bos] if flags.bos >= 0 else []), ([flags.eos] if flags.eos >= 0 else [])
    lengths = []
    begin = time.process_time()
    with open(flags.text) as lines, open(f"{flags.prefix}.bin", "wb") as out:
        for line in lines:
            ids = front + tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids + back
            out.write(numpy.array(ids, dtype=numpy.uint16).tobytes())
            lengths.append(len(ids))
    with open(f"{flags.prefix}.idx", "wb") as index:
        sizes = numpy.array(lengths, dtype=numpy.int32)
        pointers = numpy.concatenate([[0], numpy.cumsum(sizes[:-1], dtype=numpy.int64) * 2]).astype(numpy.int64)
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        index.write(sizes.tobytes() + pointers.tobytes() + numpy.arange(len(lengths) + 1, dtype=numpy.int64).tobytes())
    print(json.dumps({"cpu_s": time.process_time() - begin, "documents": len(lengths)}))


if __name__ == "__main__":
    main()
