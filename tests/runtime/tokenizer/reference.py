#!/usr/bin/env python3
"""Trains small tokenizers of the kinds that public models use, and encodes texts with Hugging Face's `tokenizers`.

    reference.py FOLDER [--bytes 200000] [--fuzzed 1500] [--seed 1] [--every 11] [--time]

Writes NAME.json for each tokenizer, texts.bin (each text: u32 bytes, UTF-8) and NAME.ids (for each text: u32 count, i32 ids,
u32 bytes and UTF-8 of what decode() gives); NAME.masks (for each text: u32 2, i32 begin and end of a range of bytes; u32 count,
i32 for each id: 1 if it stands for a character of the range); and trained.json, byte-level BPE trained on the texts of train.bin.
tokenizer_json_test.cpp and bench tokenizer compare with them. --every: each
n-th code point is tried alone; 1: all. --time: prints MB/s of one core for each tokenizer, and writes neither ids nor the
texts of single code points.

Code points are left out that one side does not know: those unassigned in Unicode 14 (PCRE2 10.42 of Debian 12), and those
whose normal forms `tokenizers` does not know, or not that they are marks, since its tables are older.
"""
import argparse
import json
import os
import random
import struct
import sys
import time
import unicodedata
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[3]
MARK = "\u2581"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
GPT4O = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

SCRIPTS = [(0x41, 0x7A), (0xC0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF),
           (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xD80, 0xDFF), (0xE00, 0xE7F), (0xF00, 0xFFF), (0x1000, 0x109F),
           (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2100, 0x21FF), (0x2200, 0x22FF), (0x3040, 0x30FF),
           (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D100, 0x1D1FF),
           (0x1D400, 0x1D7FF), (0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF), (0x20000, 0x2A6DF), (0xE0100, 0xE01EF)]
PARTS = [" ", "  ", "\n", "\n\n", "\r\n", "\t", "   \n  ", "'s", "'LL", "'\u017f", "\u00a0", "\u3000", "\u200b", "\u180e", "\x85",
         "\x00", "\x1b[0m", "\x7f", "123", "4567", "3.14", "\u00b2", "\u2160", "\u0663", "...", "!?", "_", "__init__", "//", "/* x */",
         "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "e\u0301", "\u1100\u1161\u11a8", MARK, MARK * 3,
         "\ufffd", "\ufeff", "<|endoftext|>", "<s>", "<0x0A>", "<|begin_of_text|>", "<tool_call>", " [x] ", "[x]", "q[x]", "Mask", "maskx", "Fox",
         "\u212b", "\u0958", "\u0344", "\u1e9b\u0323", "\ufb01", "\u00c5", "A\u030a"]


def is_known(c):
    """True if Unicode 14 (this Python's) has the code point, and `tokenizers` normalizes it as Unicode 14 does."""
    char = chr(c)
    if unicodedata.category(char) in ("Cs", "Cn"):
        return False
    around = f"a{char}\u0334a\u0345{char}"  # marks of the lowest and the highest class, to see its own class
    is_mark = unicodedata.category(char).startswith("M")
    known_mark = not normalizers.StripAccents().normalize_str(char)
    return is_mark == known_mark and all(
        unicodedata.normalize(form, around) == normalizer.normalize_str(around)
        for form, normalizer in (("NFD", normalizers.NFD()), ("NFKC", normalizers.NFKC())))


KNOWN = [c for c in range(0x110000) if is_known(c)]
ALPHABETS = [[chr(c) for c in KNOWN if low <= c <= high] for low, high in SCRIPTS]


def word(r):
    alphabet = r.choice(ALPHABETS)
    return "".join(r.choice(alphabet) for _ in range(r.randint(1, 8)))


def fuzzed(r):
    """A text of random pieces: words of a script, blanks, controls, single code points from everywhere."""
    out = []
    for _ in range(r.randint(1, 60)):
        kind = r.random()
        if kind < 0.45:
            out.append(word(r) + (" " if r.random() < 0.5 else ""))
        elif kind < 0.85:
            out.append(r.choice(PARTS))
        else:
            out.append(chr(r.choice(KNOWN)))
    return "".join(out)


def real_texts(size):
    """Prose, code and many scripts from files that are on every machine that runs the tests."""
    texts, total = [], 0
    folders = [ROOT / "docs", ROOT / "runtime", ROOT / "actors", ROOT / "tests", Path(os.__file__).parent]
    files = [f for folder in folders for ext in ("md", "cpp", "hpp", "py") for f in sorted(folder.rglob("*." + ext))]
    random.Random(7).shuffle(files)
    while total < size:
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")[:200_000]
            except (OSError, UnicodeDecodeError):
                continue
            texts.append(text)
            total += len(text.encode())
            if total >= size:
                break
    return texts


def code_points(every):
    """Known code points in a few surroundings, several to a text. Few of the private ones, which are all alike."""
    lines, texts = [], []
    for c in KNOWN[::every]:
        if unicodedata.category(chr(c)) == "Co" and c % 97:
            continue
        lines.append(f"a{chr(c)}b {chr(c)} 1{chr(c)}2'{chr(c)}  {chr(c)}{chr(c)}\n")
        if len(lines) == 200:
            texts.append("".join(lines))
            lines = []
    return texts + ["".join(lines)]


def trained(tokenizer, corpus, vocab, special, alphabet=None):
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False,
                                  initial_alphabet=alphabet or pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def byte_level(corpus, steps, normalizer=None, vocab=3000, special=("<|endoftext|>",), ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return trained(tokenizer, corpus, vocab, list(special))


def by_regex(regex):
    return [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def sentencepiece_like(corpus, split=None):
    """Llama 2 (split None: a normalizer and no pre-tokenizer) or newer files with Metaspace."""
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainee = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trainee.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK)
    trained(trainee, corpus, 3000, special, [MARK])
    document = json.loads(trainee.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if t["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    if split is None:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
        document = json.loads(tokenizer.to_str())
        document["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(document))
        tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=split[0], split=split[1])
        tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme=split[0])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def make_tokenizers(corpus):
    byte = pre_tokenizers.ByteLevel
    made = {"gpt2": byte_level(corpus, [byte(add_prefix_space=False)])}
    made["llama3"] = byte_level(corpus, by_regex(LLAMA3), ignore_merges=True,
                                special=["<|begin_of_text|>", "<|end_of_text|>"] + [f"<|reserved_special_token_{i}|>" for i in range(30)])
    made["llama3"].post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", made["llama3"].token_to_id("<|begin_of_text|>"))])])
    made["qwen2"] = byte_level(corpus, by_regex(QWEN2), normalizers.NFC(), special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made["qwen2"].add_tokens([AddedToken("<tool_call>", normalized=False, special=False)])
    made["olmo2"] = byte_level(corpus, by_regex(GPT4))
    made["gpt4o"] = byte_level(corpus, by_regex(GPT4O))
    made["smollm"] = byte_level(corpus, [pre_tokenizers.Digits(individual_digits=True), byte(add_prefix_space=False)])
    made["deepseek"] = byte_level(corpus, [
        pre_tokenizers.Split(Regex(r"[\r\n]"), "isolated"), pre_tokenizers.Split(Regex(r"\s?\p{L}+"), "isolated"),
        pre_tokenizers.Split(Regex(r"\s?\p{P}+"), "isolated"), pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), "isolated"),
        pre_tokenizers.Digits(individual_digits=False), byte(add_prefix_space=True, use_regex=False)])
    made["llama2"] = sentencepiece_like(corpus)
    made["mistral"] = sentencepiece_like(corpus, ("first", False))
    made["metaspace"] = sentencepiece_like(corpus, ("always", True))
    # What no public model has, in one: tokens that are words, or take blanks, or are looked for after normalization.
    odd = byte_level(corpus, by_regex(QWEN2), normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\d+"), "7"),
                                                                      normalizers.Replace("ab", "ba")]))
    odd.add_tokens([AddedToken("[x]", lstrip=True, normalized=False), AddedToken("Mask", single_word=True, normalized=False),
                    AddedToken("Fox", normalized=True), AddedToken("!?", rstrip=True, normalized=True)])
    made["odd"] = odd
    # Splits of all kinds, and a model that knows few characters and has no unknown token.
    few = Tokenizer(models.BPE())
    few.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.Split(Regex("[aeiou]+"), "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"\n"), "removed"), pre_tokenizers.Split(Regex("[.]"), "contiguous"),
        pre_tokenizers.Split(Regex("[a-z]"), "removed", invert=True)])
    made["splits"] = trained(few, corpus, 600, ["<|endoftext|>"], list("abc"))
    made["bare"] = byte_level(corpus, by_regex(QWEN2), normalizers.Sequence([
        normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]), vocab=1000)
    made["scripts"] = byte_level(corpus, [
        pre_tokenizers.Split(Regex(r"\p{Greek}+|\p{^Han}\p{Han}+|\P{Arabic}[\p{Arabic}]+"), "isolated"),
        byte(add_prefix_space=False)], vocab=1000)
    return made


def write_texts(path, texts):
    with open(path, "wb") as file:
        for text in texts:
            data = text.encode()
            file.write(struct.pack("<I", len(data)) + data)


def write_ids(path, tokenizer, texts):
    with open(path, "wb") as file:
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            back = tokenizer.decode(ids).encode()
            file.write(struct.pack(f"<I{len(ids)}iI", len(ids), *ids, len(back)) + back)


def write_masks(path, tokenizer, texts):
    """By the offsets of `tokenizers`, without the trimming of post-processors."""
    plain = Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "post_processor": None}))
    r = random.Random(11)
    with open(path, "wb") as file:
        for text in texts:
            begin, end = sorted(r.randint(0, len(text)) for _ in range(2))
            if r.random() < 0.5:
                end = min(end, begin + r.randint(0, 9))
            offsets = plain.encode(text, add_special_tokens=False).offsets
            masked = [int(begin < end and first < end and max(last, first + 1) > begin) for first, last in offsets]
            file.write(struct.pack(f"<IiiI{len(masked)}i", 2, len(text[:begin].encode()), len(text[:end].encode()), len(masked), *masked))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, default=200_000)
    parser.add_argument("--fuzzed", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=11)
    parser.add_argument("--time", action="store_true")
    flags = parser.parse_args()
    r = random.Random(flags.seed)
    corpus = real_texts(700_000) + [fuzzed(r) for _ in range(300)]
    made = make_tokenizers(corpus)
    texts = real_texts(flags.bytes)
    if not flags.time:
        texts = ["", " ", "a", "\n"] + texts + [fuzzed(r) for _ in range(flags.fuzzed)] + code_points(flags.every)
    write_texts(flags.folder / "texts.bin", texts)
    to_train = real_texts(300_000) + ["aaaa aaa\n", "\n\n"] + [fuzzed(r) for _ in range(200)]
    write_texts(flags.folder / "train.bin", to_train)
    byte_level(to_train, by_regex(LLAMA3), vocab=2000).save(str(flags.folder / "trained.json"), pretty=False)
    for name, tokenizer in made.items():
        tokenizer.save(str(flags.folder / f"{name}.json"), pretty=False)
        if not flags.time:
            write_ids(flags.folder / f"{name}.ids", tokenizer, texts)
            write_masks(flags.folder / f"{name}.masks", tokenizer, texts)
            continue
        begin = time.process_time()
        for text in texts:
            tokenizer.encode(text, add_special_tokens=False)
        print(json.dumps({"tokenizer": name, "mb_s": flags.bytes / 1e6 / (time.process_time() - begin)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
