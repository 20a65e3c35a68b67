#!/usr/bin/env python3
"""Writes tokenizer.json files of random parts, and what Hugging Face's `tokenizers` makes of random texts with them.

    random_tokenizers.py FOLDER [--count 100] [--seed 1]

Writes I.json, I.texts and I.ids for each tokenizer, in the formats of reference.py, and I.facts: the ids that its template puts
before and behind a text (-1: none), and whether `tokenizers` gives its added tokens the ids that the file says.
tokenizer_json_test.cpp compares with them.
Left out is what `tokenizers` does by chance, or what our program refuses: added tokens that are the same or empty after the
normalizer, special ones that it changes (`tokenizers` decodes them as text), and Metaspace "first" behind other steps.
"""
import argparse
import json
import os
import random
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from reference import MARK, write_ids, write_texts

WORDS = ["the", "fox", "Fox", "a", "ab", "ba", "abc", "x", "Mask", "mask", "12", "7", "345", "\u00e9", "\u00c9COLE", "\ufb01", "\u212b", "\u4e2d\u6587",
         "\u093e", "\u0301", "\u0130", "\u00df", "don't", "'LL", "_", "__", "?!", "!", "...", "-", "\u00b2", "\u2167", "\u0663", MARK, "<0x0A>", "<s>",
         "</s>", "[x]", "\ufffd", "\U0001f389", "\u200d", "\u24b6", "\u0903", "~", "$5", "`"]
BLANKS = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "   ", "\u2028", " \n "]
REGEXES = [r"\d+", r"\s+", r"[a-z]", r"\p{L}+", r" ?\p{L}+|\s", r"x|\?", r"\p{P}", r"\s+(?!\S)|\s+", r"\S+", r"[^\S\n]+",
           r"[^\D3]|[\D7]+", r"\w+", r"\W", r"[\w7]+"]
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
CONTENTS = ["[x]", " [x] ", "Mask", "Fox", "!?", " ", "  ", "\n", "<|a|>", "<|a|> ", " <|a|>", "<|b|>", "ab", "fox", "\u00c9", "\ufb01", "\u00c5", MARK,
            MARK + "the", "12", "_", "\u00e9", "x", "\t ", "<|im_end|>", "abc", "\u0301"]


def trained(corpus, byte_level):
    special = ["<unk>", "<s>", "</s>"] + ([] if byte_level else [f"<0x{b:02X}>" for b in range(256)])
    tokenizer = Tokenizer(models.BPE(unk_token=None if byte_level else "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if byte_level else pre_tokenizers.Metaspace()
    more = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()} if byte_level else {"initial_alphabet": [MARK, " "], "limit_alphabet": 40}
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=600, show_progress=False, special_tokens=special, **more))
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    return document


def pattern(r, texts):
    return {"Regex": r.choice(REGEXES)} if r.random() < .6 else {"String": r.choice(texts)}


def normalizers(r):
    made = []
    for _ in range(r.choice([0, 0, 1, 1, 2, 3])):
        made.append(r.choice([{"type": r.choice(["NFC", "NFD", "NFKC", "NFKD"])}, {"type": r.choice(["Lowercase", "StripAccents"])}, {"type": "Prepend", "prepend": r.choice([MARK, " ", "x", "ab"])},
                              {"type": "Replace", "pattern": pattern(r, [" ", "ab", "  ", "a", "!", MARK]), "content": r.choice([MARK, " ", "", "7"])}]))
    return {"type": "Sequence", "normalizers": made} if made else None


def pre_tokenizer_steps(r, byte_level, first):
    steps = [r.choice([
        {"type": "Split", "pattern": pattern(r, [" ", "a", "!", MARK, "ab"]), "invert": r.random() < .3,
         "behavior": r.choice(BEHAVIORS)},
        {"type": "Digits", "individual_digits": r.random() < .5},
        {"type": "Punctuation", "behavior": r.choice(BEHAVIORS)},
        {"type": "Whitespace"}, {"type": "WhitespaceSplit"},
        {"type": "Metaspace", "replacement": r.choice([MARK, "_"]), "split": r.random() < .6,
         "prepend_scheme": r.choice(["always", "never"] + ["first"] * (first and step == 0))}]) for step in range(r.randint(0, 3))]
    if byte_level:
        steps.append({"type": "ByteLevel", "add_prefix_space": r.random() < .5, "trim_offsets": True, "use_regex": r.random() < .5})
    return {"type": "Sequence", "pretokenizers": steps} if steps else None


def decoder(r, byte_level):
    if byte_level:
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return r.choice([None, {"type": "Metaspace", "replacement": MARK, "prepend_scheme": r.choice(["first", "always", "never"]), "split": True},
                     {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
                                                       {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}])


def added_tokens(r, document):
    vocab, seen, kept = document["model"]["vocab"], set(), []
    normalizer = Tokenizer.from_str(json.dumps({**document, "added_tokens": []})).normalizer
    for content in ["<unk>", "<s>", "</s>"] + r.sample(CONTENTS, r.randint(0, 6)):
        normalized = content not in vocab and r.random() < .5
        normal = normalizer.normalize_str(content) if normalizer and normalized else content
        if normal and not {normal, content} & seen:
            seen |= {normal, content}
            kept.append({"id": vocab.get(content, len(vocab)), "content": content, "single_word": r.random() < .25, "lstrip": r.random() < .3,
                         "rstrip": r.random() < .3, "normalized": normalized, "special": not normalized and r.random() < .6})
            if content not in vocab:
                vocab = {**vocab, content: len(vocab)}
    return sorted(kept, key=lambda token: token["id"])


def move_ids(r, added, size):
    """Lists added tokens behind a gap, in another order, or with an id that another token has."""
    new = [token for token in added if token["id"] >= size]
    if new and r.random() < .5:
        r.choice(new)["id"] += r.choice([1, 7, -1, -size])
    elif new:
        r.shuffle(added)


def template(r, document):
    """A template with at most one token before and behind the text, which may be special, added, or of the vocabulary."""
    ids = {**document["model"]["vocab"], **{token["content"]: token["id"] for token in document["added_tokens"]}}
    names = [token["content"] for token in document["added_tokens"]] + r.sample(sorted(ids), 2)
    ends = [r.choice(names) if r.random() < .6 else None for _ in range(2)]
    text = {"Sequence": {"id": "A", "type_id": r.randint(0, 1)}}
    before, behind = [[{"SpecialToken": {"id": f"[{end}]", "type_id": 0}}] if end else [] for end in ends]
    made = {"type": "TemplateProcessing", "single": before + [text] + behind, "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {f"[{end}]": {"id": f"[{end}]", "ids": [ids[end]], "tokens": [end]} for end in ends if end}}
    steps = [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": r.random() < .5, "use_regex": True}, made]
    return r.choice([made, {"type": "Sequence", "processors": r.sample(steps, 2)}]), bool(before), bool(behind)


def facts(tokenizer, document, before, behind):
    ids = tokenizer.encode("").ids
    given = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}
    return {"before": ids[0] if before else -1, "behind": ids[-1] if behind else -1,
            "same_ids": all(given[token["content"]] == token["id"] for token in document["added_tokens"])}


def random_document(r, bases):
    byte_level = r.random() < .5
    document = json.loads(json.dumps(bases[byte_level]))
    document["model"]["ignore_merges"] = r.random() < .4
    if not byte_level:
        document["model"].update(byte_fallback=r.random() < .6, fuse_unk=r.random() < .5, unk_token=r.choice(["<unk>", None]))
    document["normalizer"] = normalizers(r)
    moves = any(step["type"] in ("Prepend", "Replace", "Lowercase", "StripAccents") for step in (document["normalizer"] or {"normalizers": []})["normalizers"])
    document["pre_tokenizer"] = pre_tokenizer_steps(r, byte_level, not moves)
    document.update(decoder=decoder(r, byte_level), post_processor=None, added_tokens=added_tokens(r, document))
    return document


def random_texts(r, tokenizer, document):
    contents, texts = [token["content"] for token in document["added_tokens"]], []
    while len(texts) < 60:
        kinds = (r.choice([contents or WORDS, BLANKS, WORDS]) for _ in range(r.randint(0, 9)))
        text = "".join(r.choice(kind) for kind in kinds)
        try:
            tokenizer.encode(text)
        except BaseException as error:  # a token that begins behind its end
            if "AddedVocabulary bad split" not in str(error):
                raise
            continue
        texts.append(text)
    return texts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    r = random.Random(flags.seed)
    corpus = ["".join(r.choice(WORDS + BLANKS + [" "] * 20) for _ in range(60)) for _ in range(300)]
    bases = [trained(corpus, False), trained(corpus, True)]
    for i in range(flags.count):
        document = random_document(r, bases)
        document["post_processor"], before, behind = template(r, document)
        if r.random() < .2:
            move_ids(r, document["added_tokens"], len(document["model"]["vocab"]))
        tokenizer = Tokenizer.from_str(json.dumps(document))
        texts = random_texts(r, tokenizer, document)
        (flags.folder / f"{i}.json").write_text(json.dumps(document))
        write_texts(flags.folder / f"{i}.texts", texts)
        write_ids(flags.folder / f"{i}.ids", tokenizer, texts)
        (flags.folder / f"{i}.facts").write_text(json.dumps(facts(tokenizer, document, before, behind)))


if __name__ == "__main__":
    main()
