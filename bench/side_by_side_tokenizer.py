"""Encoding the same texts in this program, in tiktoken and in Hugging Face tokenizers, side by side.

usage: python bench/side_by_side_tokenizer.py --gpt2 FOLDER --texts FILE.jsonl [--build build/release] [--threads 1,2]

Needs tiktoken; compares with Hugging Face tokenizers too where that is installed, and reads .jsonl.zst where zstandard
is. FOLDER has vocab.bpe and encoder.json. Each round times every program once, so that a slow moment of the machine meets
all; ratios are taken round by round. The texts are in memory on every side, and every side must find the same number of
tokens.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

try:
    import tokenizers
except ImportError:
    tokenizers = None


def read_texts(path):
    with open(path, "rb") as file:
        stream = file
        if path.suffix == ".zst":
            import zstandard

            stream = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(file)
        return [json.loads(line)["text"] for line in io.TextIOWrapper(stream, encoding="utf-8")]


def load_hugging_face(folder):
    vocabulary = json.loads((folder / "encoder.json").read_text())
    merges = [tuple(line.split()) for line in (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:] if line]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def load_tiktoken(folder):
    vocabulary = json.loads((folder / "encoder.json").read_text())
    alphabet = {}
    extra = 0
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        alphabet[chr(byte) if printable else chr(256 + extra)] = byte
        extra += not printable
    ranks = {bytes(alphabet[c] for c in t): i for t, i in vocabulary.items() if t != "<|endoftext|>"}
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})


class Ours:
    def __init__(self, build, gpt2, texts):
        self.process = subprocess.Popen(
            [build / "bench" / "tokenizer_bench", gpt2, texts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, threads):
        self.process.stdin.write(f"{threads}\n")
        self.process.stdin.flush()
        seconds, tokens = self.process.stdout.readline().split()
        return float(seconds), int(tokens)


def timed(encode, threads):
    start = time.perf_counter()
    tokens = sum(map(len, encode(threads)))
    return time.perf_counter() - start, tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpt2", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "true"

    texts = read_texts(arguments.texts)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    tik = load_tiktoken(arguments.gpt2)

    def tiktoken_encode(threads):
        if threads == 1:
            return [tik.encode_ordinary(text) for text in texts]
        return tik.encode_ordinary_batch(texts, num_threads=threads)

    def hugging_face_encode(threads):
        # One text at a time runs on one thread; a batch on all (RAYON_NUM_THREADS).
        if threads == 1:
            return [hugging_face.encode(text, add_special_tokens=False).ids for text in texts]
        return [e.ids for e in hugging_face.encode_batch(texts, add_special_tokens=False)]

    programs = {
        "carope": Ours(arguments.build, arguments.gpt2, arguments.texts),
        "tiktoken": lambda threads: timed(tiktoken_encode, threads),
    }
    if tokenizers:
        hugging_face = load_hugging_face(arguments.gpt2)
        programs["tokenizers"] = lambda threads: timed(hugging_face_encode, threads)
    print(f"{len(texts)} texts, {megabytes:.1f} MB; {arguments.rounds} rounds; median (lowest to highest)")
    single = None
    for threads in sorted({int(number) for number in arguments.threads.split(",")}):
        rounds = {name: [] for name in programs}
        counts = set()
        for round_number in range(arguments.rounds + 1):
            for name, program in programs.items():
                seconds, tokens = program(threads)
                counts.add(tokens)
                if round_number > 0:  # the first warms up
                    rounds[name].append(megabytes / seconds)
        assert len(counts) == 1, f"the programs disagree: {counts}"
        print(f"{threads} thread(s), {counts.pop()} tokens")
        for name, speeds in rounds.items():
            ratios = [ours / other for ours, other in zip(rounds["carope"], speeds)]
            print(
                f"  {name:<11} {statistics.median(speeds):7.1f} MB/s ({min(speeds):.1f} to {max(speeds):.1f})"
                f"   carope is {statistics.median(ratios):5.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        if threads == 1:
            single = statistics.median(rounds["carope"])
        elif single:
            print(f"  carope on {threads} threads: {statistics.median(rounds['carope']) / single:.2f} times one thread")


if __name__ == "__main__":
    main()
