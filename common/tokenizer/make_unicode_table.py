"""Writes unicode_table.inc: the class of every code point, as the reference library's regular
expressions see it.

Asking the library, not a copy of the Unicode files, keeps the table at its version (Unicode 16 in
tokenizers 0.23.3):
    pip install tokenizers==0.23.3 && python3 make_unicode_table.py > unicode_table.inc
Code points that Unicode 14 had not assigned are marked. They come from the module unicodedata, so
python3 must be 3.11, which has Unicode 14.
"""

import unicodedata
from tokenizers import Regex, pre_tokenizers

CLASSES = [
    ("Lu", r"\p{Lu}"),
    ("Ll", r"\p{Ll}"),
    ("Lt", r"\p{Lt}"),
    ("Lm", r"\p{Lm}"),
    ("Lo", r"\p{Lo}"),
    ("M", r"\p{M}"),
    ("N", r"\p{N}"),
    ("P", r"\p{P}"),
    ("S", r"\p{S}"),
    ("Space", r"\s"),
]
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]

def matching(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    for at in range(0, len(CHARACTERS), 4096):
        block = CHARACTERS[at : at + 4096]
        # U+0001, which has no class, separates the characters, so those with an even index are from
        # the block.
        for _, (begin, _) in split.pre_tokenize_str("\x01".join(map(chr, block))):
            if begin % 2 == 0:
                yield block[begin // 2]

classes = bytearray(0x110000)
for number, (_, pattern) in enumerate(CLASSES, 1):
    for c in matching(pattern):
        classes[c] = number | (0x80 if unicodedata.category(chr(c)) == "Cn" else 0)

runs = [(c, classes[c]) for c in range(0x110000) if c == 0 or classes[c] != classes[c - 1]]
print("// Made by make_unicode_table.py. A run: its first code point << 8")
print("// | 0x80 if newer than Unicode 14 | class (CharClass).")
words = [f"0x{start << 8 | kind:X}" for start, kind in runs]
line = ""
for word in words:
    if len(line) + len(word) + 2 > 100:
        print(line.rstrip())
        line = ""
    line += word + ", "
print(line.rstrip())
