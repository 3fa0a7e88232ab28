#!/usr/bin/env python3
"""Trains the digits task with several presets, bounds of staleness and seeds, and compares.

    tests/bench/async/grid.py build/release/bin/bench_seeds --out /tmp/grid.jsonl
    tests/bench/async/grid.py build/release/bin/bench_seeds --out /tmp/grid.jsonl --table

Each run adds a line to --out, and runs that are there already are not made again, so the grid may
be stopped and continued. The seeds are the outer loop: a part of the grid is balanced. The table
shows, for each preset and bound, the mean over the seeds of the last rewards, their standard
error, and the steps to a mean reward of 0.8. A cell is marked with `below` if its mean is less
than that of staleness 0 of the same preset by more than twice the standard error of their
difference.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

PRESETS = ["sync_grpo", "async_decoupled", "async_vcpo", "async_cispo", "moe_gspo"]
JOB = pathlib.Path(__file__).with_name("grid.yaml")


def read_rows(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def run_cell(options, preset, staleness, seed):
    """Returns the row of one run; raises RuntimeError with what the run said if it failed."""
    command = [
        options.bench_seeds,
        "--json",
        "--file",
        str(JOB),
        "--seeds",
        "1",
        "--first",
        str(seed),
        "--set",
        f"algorithm.preset={preset}",
        "--set",
        f"queue.max_staleness={staleness}",
        "--set",
        f"limits.max_steps={options.steps}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    figures = {}
    for line in done.stdout.splitlines():
        figure = json.loads(line)
        figures[figure["name"].removeprefix(f"seed_{seed}.")] = figure["value"]
    if "reward_last" not in figures or figures.get("steps", 0) < options.steps:
        raise RuntimeError(
            f"{preset}, staleness {staleness}, seed {seed}: {done.stderr.strip()}"
        )
    return dict(
        preset=preset,
        staleness=staleness,
        seed=seed,
        steps=options.steps,
        figures=figures,
    )


def mean_and_error(values):
    error = (
        statistics.stdev(values) / math.sqrt(len(values))
        if len(values) > 1
        else math.nan
    )
    return statistics.mean(values), error


def print_table(rows):
    cells = {}
    for row in rows:
        cells.setdefault((row["preset"], row["staleness"]), []).append(row["figures"])
    print("| preset | staleness | seeds | last reward | steps to 0.8 (seeds) | |")
    print("|---|---|---|---|---|---|")
    for preset, staleness in sorted(cells, key=lambda c: (PRESETS.index(c[0]), c[1])):
        figures = cells[preset, staleness]
        mean, error = mean_and_error([f["reward_last"] for f in figures])
        reached = [f["steps_to_0.8"] for f in figures if "steps_to_0.8" in f]
        steps = (
            f"{statistics.mean(reached):.0f} ({len(reached)})" if reached else "- (0)"
        )
        mark = ""
        base = cells.get((preset, 0))
        if staleness > 0 and base and len(base) > 1 and len(figures) > 1:
            base_mean, base_error = mean_and_error([f["reward_last"] for f in base])
            if mean < base_mean - 2 * math.hypot(error, base_error):
                mark = "below"
        last = f"{mean:.3f} +- {error:.3f}"
        columns = [preset, staleness, len(figures), last, steps, mark]
        print("| " + " | ".join(str(column) for column in columns) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench_seeds", help="the program of that name")
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="file of the rows, JSON lines"
    )
    parser.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS)
    parser.add_argument("--staleness", nargs="+", type=int, default=[0, 1, 4, 16])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument(
        "--table",
        action="store_true",
        help="only print the table of the rows that are there",
    )
    options = parser.parse_args()
    failed = 0
    if not options.table:
        done = {
            (r["preset"], r["staleness"], r["seed"])
            for r in read_rows(options.out)
            if r["steps"] == options.steps
        }
        for seed in range(1, options.seeds + 1):
            for preset in options.presets:
                for staleness in options.staleness:
                    if (preset, staleness, seed) in done:
                        continue
                    start = time.monotonic()
                    try:
                        row = run_cell(options, preset, staleness, seed)
                    except RuntimeError as error:
                        print(error, file=sys.stderr)
                        failed += 1
                        continue
                    with options.out.open("a") as out:
                        out.write(json.dumps(row) + "\n")
                    reward, seconds = row["figures"]["reward_last"], time.monotonic() - start
                    cell = f"{preset}, staleness {staleness}, seed {seed}"
                    print(f"{cell}: reward {reward:.3f} in {seconds:.0f} s", file=sys.stderr)
    rows = [row for row in read_rows(options.out) if row["steps"] == options.steps]
    print_table(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
