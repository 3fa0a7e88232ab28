"""Compares our tokenizer with the Python package `tokenizers`, one thread each, on the same files:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers==0.23.3
    /tmp/venv/bin/python tests/bench/tokenizer/compare.py build/release/bin/bench_tokenizer \\
        DATA/tokenizers/gpt2/tokenizer.json.gz english=FILE code=FILE
Prints one figure per line, as bench_tokenizer --json does, with the package's figure as `baseline`.
Fails if the numbers of tokens differ.
"""

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402

SECONDS = 1.0


def documents(text):
    """Cuts the text as bench_tokenizer does: pieces of up to 64 KiB that end with a line."""
    data = text.encode()
    pieces = []
    while data:
        if len(data) <= 65536:
            end = len(data)
        else:
            end = data.rfind(b"\n", 0, 65537) + 1 or data.find(b"\n") + 1 or len(data)
        pieces.append(data[:end].decode())
        data = data[end:]
    return pieces


def rate(size, run):
    run()
    rates, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end or len(rates) < 3:
        start = time.monotonic()
        run()
        rates.append(size / 1e6 / (time.monotonic() - start))
    return statistics.median(rates)


def baseline(tokenizer, name, path):
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    pieces = documents(text)
    size = len(text.encode())
    ids = [tokenizer.encode(piece, add_special_tokens=False).ids for piece in pieces]
    # encode_batch_fast keeps no offsets, and neither does Sluice's Encode.
    return {
        f"encode.{name}": rate(
            size, lambda: tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        ),
        f"tokens.{name}": sum(map(len, ids)),
        f"decode.{name}": rate(
            size, lambda: [tokenizer.decode(one, skip_special_tokens=False) for one in ids]
        ),
    }


def main():
    binary, path, *texts = sys.argv[1:]
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
    with opened as file, tempfile.NamedTemporaryFile("w", suffix=".json") as unpacked:
        source = file.read()
        unpacked.write(source)
        unpacked.flush()
        command = [binary, "--tokenizer", unpacked.name, "--json", "--seconds", str(SECONDS)]
        ours = subprocess.run(
            command + [part for text in texts for part in ("--text", text)],
            check=True,
            capture_output=True,
            text=True,
        )
    start = time.monotonic()
    tokenizer = Tokenizer.from_str(source)
    theirs = {"load": time.monotonic() - start}
    for text in texts:
        theirs.update(baseline(tokenizer, *text.split("=", 1)))
    different = []
    for line in ours.stdout.splitlines():
        figure = json.loads(line)
        figure["baseline"] = theirs[figure["name"]]
        figure["ratio"] = figure["value"] / figure["baseline"]
        if figure["unit"] == "tokens" and figure["ratio"] != 1:
            different.append(figure["name"])
        print(json.dumps(figure))
    if different:
        sys.exit(f"the numbers of tokens differ: {', '.join(different)}")


main()
