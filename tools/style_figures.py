#!/usr/bin/env python3
"""Prints figures about the readability of the C++ sources, one per line.

    tools/style_figures.py [--json] [DIRECTORY..]

Each argument is measured by itself; several directories in one argument are measured together. The
default is "common kernels services tools" and tests.

Lines inside functions are those between the braces of a body. A function has a one-word name if
that name is a single capitalised word (Take, Fence) or a single lower-case one with no underscore;
constructors, destructors, operators and main are not counted. Assertions are SLUICE_CHECK,
SLUICE_DCHECK, assert and static_assert. Bodies are found by their braces, without a compiler, so
macros can hide some of them; the figures serve to compare one commit with another.
"""

import argparse
import json
import pathlib
import re
import subprocess

TYPE_OR_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$")
NAME = re.compile(r"([A-Za-z_][A-Za-z_0-9:~]*)\s*\($")
ASSERTION = re.compile(r"\b(SLUICE_CHECK|SLUICE_DCHECK|assert|static_assert)\s*\(")
NOT_A_NAME = {"if", "for", "while", "switch", "catch", "return", "sizeof", "decltype", "alignas"}


def without_strings(text):
    """Returns the source with spaces in place of comments and literals, so that braces can be
    counted. Line numbers do not change."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^ ()\\\n]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
        re.S,
    )
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def function_name(head):
    """Returns the function's name in `head`, the text before a body; None if it is no function."""
    depth = 0
    for end in range(len(head) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(head[end], 0)
        if depth == 0 and head[end] == "(":
            match = NAME.search(head[: end + 1])
            # In front of a constructor's initializers there is another pair of parentheses.
            before = head[:end].rstrip()
            if match and not re.search(r"[:,]\s*[A-Za-z_][A-Za-z_0-9]*$", before.replace("::", "")):
                return match.group(1).split("::")[-1]
    return None


def bodies(text):
    """Returns (name, first line, last line) of each function: the lines of its braces, from 0."""
    clean = without_strings(
        re.sub(r"(?m)^\s*#.*(?:\\\n.*)*", lambda m: "\n" * m[0].count("\n"), text)
    )
    found, stack, head, line, inside = [], [], "", 0, 0
    for c in clean:
        if c == "\n":
            line += 1
        if c == "{":
            name = None
            if not inside and not TYPE_OR_SCOPE.search(head) and "(" in head:
                name = function_name(head)
            stack.append((name, line))
            inside += name is not None
            head = ""
        elif c == "}":
            name, first = stack.pop() if stack else (None, line)
            if name is not None:
                inside -= 1
                found.append((name, first, line))
            head = ""
        elif c == ";":
            head = ""
        else:
            head += c
    return found


def measure(paths):
    lengths, names = [], []
    inner = comments = blank = functions = assertions = 0
    for path in paths:
        text = path.read_text()
        lines = text.split("\n")
        lengths += [len(line) for line in lines if line.strip()]
        assertions += len(ASSERTION.findall(without_strings(text)))
        for name, first, last in bodies(text):
            functions += 1
            body = lines[first + 1 : last]
            inner += len(body)
            comments += sum(line.lstrip().startswith("//") for line in body)
            blank += sum(not line.strip() for line in body)
            if name not in NOT_A_NAME and not name.startswith(("~", "operator")) and name != "main":
                names.append(name)
    classes = set(re.findall(r"\b(?:class|struct) (\w+)", "".join(p.read_text() for p in paths)))
    names = [name for name in names if name not in classes]
    one_word = [name for name in names if re.fullmatch(r"[A-Z]?[a-z0-9]+", name)]
    lengths.sort()
    return {
        "lines": len(lengths),
        "functions": functions,
        "comment lines inside functions, %": 100 * comments / max(1, inner),
        "blank lines inside functions, %": 100 * blank / max(1, inner),
        "95th percentile of line length": lengths[len(lengths) * 95 // 100] if lengths else 0,
        "lines above 100 columns, %": 100 * sum(x > 100 for x in lengths) / max(1, len(lengths)),
        "one-word function names, %": 100 * len(one_word) / max(1, len(names)),
        "assertions per function": assertions / max(1, functions),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="*")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    tracked = subprocess.run(
        ["git", "ls-files", "*.cc", "*.h", "*.cu", "*.inc"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    directories = args.directories or ["common kernels services tools", "tests"]
    for group in directories:
        prefixes = tuple(name.rstrip("/") + "/" for name in group.split())
        paths = [root / f for f in tracked if f.startswith(prefixes) and "_table.inc" not in f]
        for name, value in measure(paths).items():
            if args.json:
                print(json.dumps({"directories": group, "name": name, "value": round(value, 3)}))
            else:
                print(f"{group:32} {name:36} {value:10.2f}")


if __name__ == "__main__":
    main()
