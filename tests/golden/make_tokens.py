#!/usr/bin/env python3
"""Writes tests/golden/tokens.json and tests/data/small/: token ids from tiktoken and Hugging Face tokenizers.

Both implementations encode every text and must agree before anything is written. Bytes that are not UTF-8 are not text
to either, so for these the text is split by the `regex` module (each stray byte as a lone surrogate, which is neither
letter, number nor space) and tiktoken merges each piece.

Two vocabularies: GPT-2's, from a folder with vocab.bpe and encoder.json, and a small one, which Hugging Face's trainer
learns here from tests/data/small/training.txt; its files in all three formats are committed, so that its tests run
everywhere.

    pip install tiktoken==0.14.0 tokenizers==0.23.3 regex==2026.11.9 zstandard==0.25.0
    python3 tests/golden/make_tokens.py --gpt2 FOLDER [--validation val.jsonl.zst]
"""

import argparse
import base64
import hashlib
import io
import json
import pathlib
import random
import struct

import regex
import tiktoken
import tokenizers
import zstandard
from tiktoken_ext.openai_public import r50k_pat_str
from tokenizers import decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
SMALL = HERE.parent / "data" / "small"
END_OF_TEXT = "<|endoftext|>"
SPECIAL_TEXTS = [
    "before<|endoftext|>after <|endoftext|> <|endof",
    "<|endoftext|>",
    "<|endoftext|><|endoftext|> two  <|endoftext|>  lines\n<|endoftext|>\n",
]
# The pattern as OpenAI published it with GPT-2.
GPT2_PATTERN = regex.compile(
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)


def byte_alphabet():
    """The 256 bytes as printable characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(256 + len(alphabet) - len(printable))
    return alphabet


TO_CHARACTER = byte_alphabet()
TO_BYTE = {character: byte for byte, character in TO_CHARACTER.items()}


class Oracle:
    """One vocabulary in both implementations."""

    def __init__(self, vocabulary, merges):
        special = vocabulary[END_OF_TEXT]
        ranks = {
            bytes(TO_BYTE[c] for c in token): rank
            for token, rank in vocabulary.items()
            if token != END_OF_TEXT
        }
        self.ranks = ranks
        self.tiktoken = tiktoken.Encoding(
            "oracle", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: special}
        )
        self.hugging_face = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        self.hugging_face.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.hugging_face.decoder = decoders.ByteLevel()

    def encode(self, data):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return self.encode_stray_bytes(data)
        ids = self.tiktoken.encode_ordinary(text)
        assert ids == self.hugging_face.encode(text, add_special_tokens=False).ids, data[:80]
        return ids

    def encode_stray_bytes(self, data):
        ids = []
        for piece in GPT2_PATTERN.findall(data.decode("utf-8", "surrogateescape")):
            ids += self.tiktoken._core_bpe.encode_single_piece(piece.encode("utf-8", "surrogateescape"))
        return ids


def digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}H", *ids)).hexdigest()


def nasty_texts():
    """(name, segments): a text is its segments one after the other, each some bytes a number of times."""
    whole = lambda text: [(text.encode("utf-8") if isinstance(text, str) else text, 1)]
    yield "empty", []
    yield "plain", whole("The quick brown fox jumps over the lazy dog, twice.")
    yield "contractions", whole("I'm you're he's we've they'll I'd can't 'S 'T 'RE I'M don''t 'sx ' s 'l 'r 'v ''s 'll'll")
    yield "typographic apostrophes", whole("I’m you’re he’s ‘quoted’ “double”")
    yield "digits", whole("0 1 12 123 1234567890 3.14159 1,000,000 0x1F 1e-9 ٣٤٥ Ⅷ ½ ² 一二三 ১২৩")
    yield "line ends", whole("one\r\ntwo\rthree\n\n\nfour\n \n\tfive \r\n \r\n")
    yield "nul and controls", whole(b"a\x00b\x00\x00 \x00\x01\x02\x1b[31mred\x1b[0m\x7f\x1c\x1d\x1e\x1f")
    yield "unicode spaces", whole("a\u00a0b\u1680c\u2003d\u2028e\u202ff\u205fg\u3000h\u0085i  \u00a0 j\u200bk\ufeffl\u180em")
    yield "trailing spaces", whole("word   ")
    yield "leading spaces", whole("   word")
    yield "spaces between", whole("a  b   c    d     e \t f\t\tg")
    yield "only a space", whole(" ")
    yield "only a newline", whole("\n")
    yield "emoji with joiners", whole("👩‍👩‍👧‍👦 👨🏽‍🚀🏳️‍🌈 🇩🇪🇫🇷 ❤️‍🔥 👍🏿 1️⃣ 🧑‍💻x🧑‍💻")
    yield "lone combining marks", whole("\u0301 \u0301a a\u0301\u0302\u0303 \u20dd \u0e31\u0e33 \u093e\u094d \u05b0")
    yield "zalgo", whole("Z̴̡̛͖̀͝a̵̧͔̾l̷̢̛̲g̶̤̽o̸͎͠ !̷")
    yield "scripts", whole(
        "Ελληνικά кириллица עברית العَرَبِيَّة हिन्दी বাংলা ਪੰਜਾਬੀ ગુજરાતી தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල ไทย ລາວ བོད་ "
        "မြန်မာ ქართული 한국어 ᄒᆞᆫ አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ ᚠᚢᚦ ខ្មែរ ᠮᠣᠩᠭᠣᠯ 日本語 ひらがな カタカナ 中文 注音ㄅㄆ ꦗꦮ "
        "𐎀𐎁 𐤀𐤁 𓀀𓀁 𝒳𝔘𝟘 🄰 Հայերեն ⵜⵉⴼ ߒߞߏ"
    )
    yield "ligatures and case", whole("ﬁ ﬂ ß ẞ ǅ ı İ ſ ª º ʰ Ａ１　ｶﾅ")
    yield "special as text", whole("before<|endoftext|>after <|endoftext|> <|endof")
    yield "urls and code", whole('https://example.org/a?b=c&d=%20#e\nfor (int i=0;i<10;++i){\n\treturn x->y["k"];\n}\n')
    yield "punctuation runs", whole("!!!??? ...—–- ((([[{{<<>>}}]])) $$$ ### @@@ ~~~ ``` ''' \"\"\" ' '' '''")
    yield "mixed classes", whole("a1b2c3 x_y-z α1β №5 3rd B2B ①② a\u0301b1\u0301")
    yield "last code points", whole("\ud7ff\ue000\uffff\U00010000\U0010ffff")
    yield "noncharacters", whole("\ufdd0\ufffe\uffff\U0001fffe")
    yield "all bytes", whole(bytes(range(256)))
    yield "all bytes after letters", whole(b"".join(b"a" + bytes([b]) for b in range(256)))
    yield "overlong and surrogates", whole(b"\xc0\xaf \xe0\x80\xaf \xed\xa0\x80 \xed\xbf\xbf \xf0\x80\x80\xaf \xf4\x90\x80\x80 \xf8\x88\x80\x80\x80")
    yield "cut sequences", whole(b"\xe2\x82 \xe2\x82\xac\xe2 a\xf0\x9f\x98 b\xf0\x9f\x98\x80\xf0\x9f c\xc3")
    yield "stray continuations", whole(b"\x80\x81 a\x80b \xbf\xbf\xbf 1\x802 \xc3\xa9\xa9")
    yield "latin-1", whole("na\u00efve caf\u00e9 \u00a0 \u00bd".encode("latin-1"))
    yield "ten thousand spaces", [(b" ", 10000)]
    yield "ten thousand spaces in a sentence", [(b"a", 1), (b" ", 10000), (b"b", 1)]
    yield "ten thousand letters", [(b"a", 10000)]
    yield "ten thousand newlines", [(b"\n", 10000)]
    yield "ten thousand CRLF", [(b"\r\n", 10000)]
    yield "ten thousand NUL", [(b"\x00", 10000)]
    yield "ten thousand digits", [(b"0123456789", 1000)]
    yield "ten thousand apostrophes", [(b"'", 10000)]
    yield "many contractions", [(b"'s'll", 2000)]
    yield "many emoji", [("👩‍👧".encode(), 1000)]
    yield "many combining marks", [("e\u0301\u0301".encode(), 1000)]
    yield "many stray bytes", [(b"\xff", 10000)]
    yield "long word", [(b"pneumonoultramicroscopicsilicovolcanoconiosis", 300)]
    yield "two letters", [(b"ab", 5000)]
    yield "a megabyte of one letter", [(b"a", 1 << 20)]
    yield "a megabyte of one pair", [(b"th", 1 << 19)]
    chance = random.Random(1)
    alphabets = {
        "ascii": [chr(c) for c in range(128)],
        "spaces and letters": list("aab  \n\t'st"),
        "latin": [chr(c) for c in range(32, 0x250)],
        "any": None,
    }
    for name, letters in alphabets.items():
        for i in range(20):
            size = chance.randrange(1, 200)
            if letters is None:
                points = [chance.randrange(0x110000) for _ in range(size)]
                text = "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)
            else:
                text = "".join(chance.choice(letters) for _ in range(size))
            yield f"random {name} {i}", whole(text)
    for i in range(20):
        # Bytes without any valid sequence past ASCII, so that the version of Unicode does not matter.
        yield f"random bytes {i}", whole(
            bytes(chance.choice([*range(128), *range(0x80, 0xC2), 0xFE, 0xFF]) for _ in range(chance.randrange(1, 300)))
        )


def probe():
    """A vocabulary that shows every boundary: the bytes in order, then each of a, 1, ! and a space with each first byte of
    a character that follows it. The two merge only within a piece, so "a?", "1?" and "!?" tell the class of "?"."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [before + bytes([lead]) for before in (b"a", b"1", b"!", b" ") for lead in range(0xC2, 0xF5)]
    spell = lambda token: "".join(TO_CHARACTER[byte] for byte in token)
    vocabulary = {spell(token): rank for rank, token in enumerate(tokens)}
    vocabulary[END_OF_TEXT] = len(vocabulary)
    return Oracle(vocabulary, [(spell(token[:1]), spell(token[1:])) for token in tokens[256:]])


def code_points_text(block):
    """Every code point of a block of 4 096 behind a letter, a number, a mark and spaces."""
    text = ""
    for point in range(block * 4096, (block + 1) * 4096):
        if not 0xD800 <= point < 0xE000:
            c = chr(point)
            text += f"a{c}1{c}!{c} {c}{c}\n{c}"
    return text.encode("utf-8")


def expected(oracle):
    cases = []
    for name, segments in nasty_texts():
        data = b"".join(part * count for part, count in segments)
        ids = oracle.encode(data)
        case = {"name": name, "text": [[part.hex(), count] for part, count in segments], "count": len(ids)}
        case.update({"ids": ids} if len(ids) <= 60 else {"sha256": digest(ids)})
        cases.append(case)
    return {
        "cases": cases,
        "specials": [[text, oracle.tiktoken.encode(text, allowed_special="all")] for text in SPECIAL_TEXTS],
        "code_points": [digest(oracle.encode(code_points_text(block))) for block in range(0x110)],
    }


def train_small():
    """The small vocabulary, with ids in GPT-2's order: bytes, merges, end of text."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1023, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator([(SMALL / "training.txt").read_text(encoding="utf-8")], trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    vocabulary[END_OF_TEXT] = len(vocabulary)
    return vocabulary, [tuple(merge) for merge in model["merges"]]


def write_small(vocabulary, merges, oracle):
    (SMALL / "pair").mkdir(exist_ok=True)
    (SMALL / "pair" / "encoder.json").write_text(json.dumps(vocabulary))
    lines = "".join(f"{left} {right}\n" for left, right in merges)
    (SMALL / "pair" / "vocab.bpe").write_text("#version: 0.2\n" + lines, encoding="utf-8")
    ranks = sorted(oracle.ranks.items(), key=lambda item: item[1])
    (SMALL / "small.tiktoken").write_text(
        "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks)
    )
    oracle.hugging_face.add_special_tokens([END_OF_TEXT])
    oracle.hugging_face.save(str(SMALL / "tokenizer.json"))


def load_gpt2(folder):
    vocabulary = json.loads((folder / "encoder.json").read_text())
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    return vocabulary, [tuple(line.split()) for line in lines if line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpt2", type=pathlib.Path, required=True)
    parser.add_argument("--validation", type=pathlib.Path)
    arguments = parser.parse_args()

    vocabulary, merges = train_small()
    small = Oracle(vocabulary, merges)
    gpt2 = Oracle(*load_gpt2(arguments.gpt2))
    golden = {"small": expected(small), "gpt2": expected(gpt2)}
    prober = probe()
    golden["probe"] = [digest(prober.encode(code_points_text(block))) for block in range(0x110)]
    write_small(vocabulary, merges, small)
    for text in SPECIAL_TEXTS:
        assert small.tiktoken.encode(text, allowed_special="all") == small.hugging_face.encode(text).ids
    if arguments.validation:
        documents = count = 0
        hashed = hashlib.sha256()
        with open(arguments.validation, "rb") as file:
            stream = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(file)
            for line in io.TextIOWrapper(stream, encoding="utf-8"):
                ids = gpt2.encode(json.loads(line)["text"].encode("utf-8"))
                hashed.update(struct.pack(f"<{len(ids)}H", *ids))
                documents += 1
                count += len(ids)
        golden["validation"] = {"documents": documents, "count": count, "sha256": hashed.hexdigest()}
    (HERE / "tokens.json").write_text(json.dumps(golden, indent=0) + "\n")
    for name in ("small", "gpt2"):
        print(name, len(golden[name]["cases"]), "texts and every code point agree")


if __name__ == "__main__":
    main()
