#!/usr/bin/env python3
"""Prints src/data/tokenizer/unicode_classes.inc: which code points are letters (\\p{L}) and numbers (\\p{N}).

The classes are those of Unicode 16.0, which current releases of tiktoken and of Hugging Face tokenizers both use; a
later Unicode would split text in newly encoded scripts differently from them.

    pip install tokenizers==0.23.3
    python3 scripts/make_unicode_classes.py > src/data/tokenizer/unicode_classes.inc
"""

from tokenizers import Regex, pre_tokenizers

SURROGATES = range(0xD800, 0xE000)


def ranges(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = []
    for point in range(0x110000):
        if point in SURROGATES or split.pre_tokenize_str(chr(point)):
            continue
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


print("// Unicode 16.0; written by scripts/make_unicode_classes.py. First and last code point of each range.")
print("// clang-format off")
for name, pattern in (("kLetters", r"\p{L}"), ("kNumbers", r"\p{N}")):
    print(f"constexpr CodePointRange {name}[] = {{")
    line = ""
    for first, last in ranges(pattern):
        cell = f"{{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(cell) + 1 > 98:
            print("  " + line.rstrip())
            line = ""
        line += cell + " "
    print("  " + line.rstrip())
    print("};")
