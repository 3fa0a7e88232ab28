#!/usr/bin/env python3
"""Rewrites a CUDA source, so that g++ compiles it for the emulator.

  rewrite.py ROOT FILE.cu OUT.cc      FILE is relative to ROOT

CUDA constructs that are not C++ are replaced by calls of tests/cuda_emulator/emulator.h:
  kernel<<<grid, block>>>(args)       Launch("kernel", Config(grid, block), .., args)
  __shared__ float a[4], b;           auto& a = Shared<float[4]>(..), one for each variable
  extern __shared__ float a[];        float* const a = the block's dynamic memory
  asm("fma.rn.ftz.f32 ..." : ..)      FmaRnFtz(..); instructions not in `PTX` below are errors
It also registers the names of the __global__ functions, so that unused kernels are reported.
"""
import re
import sys

EMULATOR = "::sluice::cuda_emulator::"

# Instructions of inline PTX, with what replaces them; {0} is the output, {1} and on are inputs.
PTX = {
    "fma.rn.ftz.f32 %0, %1, %2, %3;": "{0} = " + EMULATOR + "FmaRnFtz({1}, {2}, {3})",
}


class RewriteError(Exception):
    """An error that says what cannot be rewritten, and where it is."""

    def __init__(self, source, offset, what):
        super().__init__(f"{source.path}:{source.text.count(chr(10), 0, offset) + 1}: {what}")


class Source:
    """A file's text, and `code`, which has spaces in place of comments and strings."""

    BLANKED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

    def __init__(self, path, text):
        self.path = path
        self.text = text
        # Quoted characters are left as they are, because a digit separator (70'000) is not a quote.
        self.code = self.BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)

    def closing(self, opening):
        """Returns the position of the bracket that closes the one at `opening`."""
        pairs = {"(": ")", "[": "]", "{": "}"}
        depth = 0
        for at in range(opening, len(self.code)):
            if self.code[at] in pairs:
                depth += 1
            elif self.code[at] in pairs.values():
                depth -= 1
                if depth == 0:
                    return at
        raise RewriteError(self, opening, f"no {pairs[self.code[opening]]} closes this")

    def split(self, begin, end, separator):
        """Splits [begin, end) at separators outside brackets. Returns a list of (begin, end)."""
        pieces, start, depth = [], begin, 0
        for at in range(begin, end):
            if self.code[at] in "([{":
                depth += 1
            elif self.code[at] in ")]}":
                depth -= 1
            elif self.code[at] == separator and depth == 0:
                pieces.append((start, at))
                start = at + 1
        return pieces + [(start, end)]


def callee_begin(source, end):
    """Returns where the kernel's name (with template arguments) that ends at `end` begins."""
    at = end
    while source.code[at - 1].isspace():
        at -= 1
    if source.code[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += {">": 1, "<": -1}.get(source.code[at], 0)
            if depth == 0:
                break
    while re.match(r"[\w:]", source.code[at - 1]):
        at -= 1
    return at


# Each of the next three functions yields its edits of a source: (begin, end, new text).

def launches(source):
    for match in re.finditer("<<<", source.code):
        begin = callee_begin(source, match.start())
        name = source.text[begin:match.start()].strip()
        close = source.code.find(">>>", match.end())
        arguments = re.compile(r"\s*\(").match(source.code, close + 3)
        if close < 0 or arguments is None or not name:
            raise RewriteError(source, match.start(),
                               "this is not of the form kernel<<<...>>>(...)")
        end = source.closing(arguments.end() - 1)
        config = source.text[match.end():close]
        passed = source.text[arguments.end():end]
        yield begin, end + 1, (
            f'{EMULATOR}Launch("{" ".join(name.split())}", {EMULATOR}Config({config}), '
            f"[](auto... cuda_emulator_args) {{ {name}(cuda_emulator_args...); }}"
            f"{', ' if passed.strip() else ''}{passed})")


VARIABLE = r"([A-Za-z_]\w*)\s*((?:\[[^\]]*\]\s*)*)"  # A name, and the sizes of an array.


def shared_variables(source):
    for match in re.finditer(r"(\bextern\s+)?\b__shared__\b", source.code):
        end = source.code.find(";", match.end())
        pieces = [source.code[b:e] for b, e in source.split(match.end(), end, ",")]
        declared = re.sub(r"\b(?:__align__|alignas)\s*\([^)]*\)", "", pieces[0])
        first = re.fullmatch(r"([\w\s:<>,*]*?)" + VARIABLE, declared)
        if first is None or not first[1].strip():
            raise RewriteError(source, match.start(), "cannot parse this __shared__ declaration; "
                               "write a type, then names with array sizes, without initialisers")
        of_type = " ".join(first[1].split())
        if match[1]:
            yield match.start(), end, (f"{of_type}* const {first[2]} = "
                                       f"static_cast<{of_type}*>({EMULATOR}DynamicSharedPlace())")
            continue
        made = []
        for piece in [first[2] + first[3]] + pieces[1:]:
            part = re.fullmatch(r"\s*" + VARIABLE, piece)
            if part is None:
                raise RewriteError(source, match.start(),
                                   f"cannot parse the variable {piece.strip()}; "
                                   "write a name with array sizes, without an initialiser")
            made.append(f"static char {part[1]}_place; auto& {part[1]} = {EMULATOR}"
                        f'Shared<{of_type}{part[2].strip()}>(&{part[1]}_place, "{part[1]}")')
        yield match.start(), end, "; ".join(made)


def assembly(source):
    for match in re.finditer(r"\basm\s*(?:volatile\s*)?\(", source.code):
        opening = match.end() - 1
        end = source.closing(opening)
        parts = source.split(opening + 1, end, ":")
        template = "".join(re.findall(r'"([^"]*)"', source.text[slice(*parts[0])]))
        template = " ".join(template.split())
        if template not in PTX:
            raise RewriteError(source, match.start(),
                               f"the emulator does not know the PTX '{template}'; "
                               "add it to PTX in tests/cuda_emulator/rewrite.py")
        operands = []
        for begin, stop in parts[1:3]:
            for piece in source.split(begin, stop, ","):
                opened = source.code.find("(", *piece)
                operands.append(source.text[opened + 1:source.closing(opened)])
        yield match.start(), end + 1, PTX[template].format(*operands)


def kernels(source):
    """Returns the names of the __global__ functions."""
    code = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", source.code)
    return re.findall(r"\b__global__\b[^;{()]*?(\w+)\s*\(", code)


def rewrite(path, text):
    source = Source(path, text)
    edits = sorted([*launches(source), *shared_variables(source), *assembly(source)])
    out, at = [], 0
    for begin, end, new in edits:
        if begin < at:
            raise RewriteError(source, begin, "this lies within another rewritten statement")
        # Keeps the number of lines, so that the lines after it keep their numbers.
        lines = source.text.count("\n", begin, end) - new.count("\n")
        out += [source.text[at:begin], new, "\n" * lines]
        at = end
    out.append(source.text[at:])
    names = ", ".join(f'"{name}"' for name in dict.fromkeys(kernels(source)))
    return (f'#include <cuda_runtime.h>\n#line 1 "{path}"\n{"".join(out)}\n'
            f"static const {EMULATOR}Kernels cuda_emulator_kernels(\"{path}\", {{{names}}});\n")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    root, path, out = sys.argv[1:]
    with open(f"{root}/{path}", encoding="utf-8") as file:
        text = file.read()
    try:
        text = rewrite(path, text)
    except RewriteError as error:
        sys.exit(f"error: {error}")
    with open(out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
