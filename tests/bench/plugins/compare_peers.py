#!/usr/bin/env python3
"""Compares scores of verl's and TRL's own functions, through Sluice's SDK and called directly.

    python3 tests/bench/plugins/compare_peers.py [--answers 1000] [--venv DIR]

Installs the wheels verl and trl, without what they depend on, into a virtual environment, and
prints a line for each function. Exits with 1 if a score differs.
"""

import argparse
import glob
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SDK = os.path.join(ROOT, "tools", "sdk", "sluice_reward.py")

# Function, its file below site-packages, its convention, and what else the SDK is told of it.
FUNCTIONS = [
    ("verl", "verl/utils/reward_score/gsm8k.py:compute_score", {}),
    ("verl", "verl/utils/reward_score/gsm8k.py:compute_score", {"method": "flexible"}),
    ("verl", "verl/utils/reward_score/math_reward.py:compute_score", {}),
    ("verl", "verl/utils/reward_score/math_dapo.py:compute_score", {}),
    ("verl", "verl/utils/reward_score/math_dapo.py:compute_score", {"strict_box_verify": True}),
    ("trl", "trl/rewards/format_rewards.py:think_format_reward", {}),
]
PIECES = ["#### 42", "#### 1,234", "####", " 42 ", "\\boxed{42}", "\\boxed{\\frac{1}{2}}",
          "\\boxed{", "Answer: 42", "Answer: \\frac12", "<think>", "</think>", "\n", "so it is ",
          "$\\sqrt{2}$", "-3.50", "é\u0663", "the answer is", "\\boxed{1,234}", "}"]
TRUTHS = ["42", "1234", "1,234", "\\frac{1}{2}", "-3.5", "\\sqrt{2}"]


def install(venv):
    """Returns the folder site-packages with the wheels."""
    if not glob.glob(os.path.join(venv, "lib", "python*", "site-packages", "verl")):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip = os.path.join(venv, "bin", "pip")
        subprocess.run([pip, "-q", "install", "--no-deps", "verl", "trl"], check=True)
    return glob.glob(os.path.join(venv, "lib", "python*", "site-packages"))[0]


def answers(count):
    draw = random.Random(7)
    return [{"prompt": [{"role": "user", "content": "6 * 7"}],
             "completion": "".join(draw.choices(PIECES, k=draw.randrange(8))),
             "ground_truth": draw.choice(TRUTHS),
             "data_source": "peers",
             "extra_info": {},
             "truncated": False} for _ in range(count)]


def through_sdk(convention, place, config, items):
    """Returns the results and the seconds that they took."""
    process = subprocess.Popen([sys.executable, SDK, "--" + convention, place],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(message):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    send({"sluice": 1, "job": "peers", "config": config})
    begin = time.perf_counter()
    results = [send({"id": i, "deadline_ms": 10000, "items": [item]})["results"][0]
               for i, item in enumerate(items)]
    seconds = time.perf_counter() - begin
    process.stdin.close()
    process.wait()
    return results, seconds


def load(place):
    path, name = place.rsplit(":", 1)
    spec = importlib.util.spec_from_file_location("peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def direct(convention, function, config, item):
    """Returns the score of a call as verl and TRL make it, or None if it raises."""
    try:
        if convention == "trl":
            return function(completions=[[{"role": "assistant", "content": item["completion"]}]],
                            prompts=[item["prompt"]], **config)[0]
        value = function(item["completion"], item["ground_truth"], **config)
        return value["score"] if isinstance(value, dict) else value
    except Exception:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--venv", default=os.path.join(tempfile.gettempdir(), "sluice-peers"))
    flags = parser.parse_args()

    packages = install(flags.venv)
    items = answers(flags.answers)
    failed = False
    for convention, place, config in FUNCTIONS:
        place = os.path.join(packages, place)
        results, seconds = through_sdk(convention, place, config, items)
        function = load(place)
        expected = [direct(convention, function, config, item) for item in items]
        wrong = sum(result.get("score") != score for result, score in zip(results, expected))
        errors = sum("error" in result for result in results)
        print(f"{os.path.relpath(place, packages):58} {len(items)} answers  "
              f"{sum((score or 0) > 0 for score in expected)} above 0  {errors} errors  "
              f"{wrong} differ  {seconds / len(items) * 1e6:.0f} us each")
        failed = failed or wrong > 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
