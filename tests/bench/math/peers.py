"""Scores the same rows with bench_math_verifier and with Math-Verify, in turn, and prints how many
verdicts agree with the labels and the ratio of the rates:

    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install math-verify==0.9.0 antlr4-python3-runtime==4.13.2
    /tmp/venv/bin/python tests/bench/math/peers.py build/release/bin/bench_math_verifier \\
        ../shared/data/math/equivalence.jsonl [--json] [--rounds 3]

Math-Verify rounds to 6 decimals, or to the row's `decimals`. A bare answer is put between dollar
signs, without which Math-Verify does not look for LaTeX in it. It has its own limits of time, as
some rows would not end without. Each figure is the median of the rounds. Rows with a `policy` (a
convention decides on them) count for the rates, but not for the agreement.
"""

import argparse
import json
import logging
import statistics
import subprocess
import time


def load(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def dollars(text, kind):
    return text if "$" in text or "\\boxed" in text or kind != "answer" else f"${text}$"


def score_theirs(rows):
    """Returns the verdicts, and the seconds that they took."""
    from math_verify import parse, verify

    verdicts, start = [], time.perf_counter()
    for row in rows:
        kind = row.get("kind", "response")
        try:
            gold = parse(dollars(row["gold"], "answer"))
            answer = parse(dollars(row["pred"], kind))
            digits = row.get("decimals", 6)
            verdicts.append(verify(gold, answer, float_rounding=digits))
        except Exception:
            verdicts.append(False)
    return verdicts, time.perf_counter() - start


def run_ours(options, *flags):
    done = subprocess.run(
        [options.bench, *flags, options.rows], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def count_agreement(rows, verdicts):
    """Returns (agreeing, wrongly equal, all) over the rows that need no convention."""
    pairs = [(row["equal"], bool(v)) for row, v in zip(rows, verdicts) if "policy" not in row]
    agreeing = sum(want == got for want, got in pairs)
    return agreeing, sum(got and not want for want, got in pairs), len(pairs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench")
    parser.add_argument("rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one object per line")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # Math-Verify logs each row that it cannot read.
    rows = load(options.rows)

    score_theirs(rows[:20])  # Imports and caches.
    our_rates, their_rates, figures = [], [], {}
    for _ in range(options.rounds):
        figures = {f["name"]: f for f in map(json.loads, run_ours(options, "--json"))}
        our_rates.append(figures["math_verifier/rate"]["value"])
        theirs, seconds = score_theirs(rows)
        their_rates.append(len(rows) / seconds)
    ours = [float(line) == 1 for line in run_ours(options, "--verdicts")]
    our_rate, their_rate = statistics.median(our_rates), statistics.median(their_rates)

    if options.json:
        figure = dict(
            name="math_verifier/rate",
            value=our_rate,
            unit="rows/s",
            baseline=their_rate,
            ratio=our_rate / their_rate,
            runs=options.rounds,
        )
        print(json.dumps(figure))
        return
    for name, verdicts, rate in (("sluice", ours, our_rate), ("math-verify", theirs, their_rate)):
        agreeing, wrong, count = count_agreement(rows, verdicts)
        print(f"{name:12} {rate:10.0f} rows/s   {agreeing} of {count} agree, {wrong} wrongly equal")
    p99 = figures["math_verifier/p99"]["value"]
    print(f"{our_rate / their_rate:.0f} times the rate; our 99th percentile is {p99:.0f} us")


if __name__ == "__main__":
    main()
