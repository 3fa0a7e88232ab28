"""Renders templates with Python's jinja2, configured as in transformers, and with
bench_chat_template, and prints the ratio of the times.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install jinja2
    /tmp/venv/bin/python tests/bench/chat/compare.py build/release/bin/bench_chat_template \\
        TEMPLATE.jinja.. [--json]

Both render tests/bench/chat/conversation.json, which has 20 messages with tools. The texts must be
equal. Times are medians. For each template in turn, both programs are measured one after the other.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONVERSATION = pathlib.Path(__file__).with_name("conversation.json")
RUNS, RUN_SECONDS = 15, 0.02


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: time.strftime(form, time.gmtime(0))
    return env


def median_microseconds(call):
    runs = []
    for _ in range(RUNS):
        start, calls = time.perf_counter(), 0
        while True:
            call()
            calls += 1
            elapsed = time.perf_counter() - start
            if elapsed >= RUN_SECONDS:
                break
        runs.append(1e6 * elapsed / calls)
    return statistics.median(runs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench")
    parser.add_argument("templates", nargs="+")
    parser.add_argument(
        "--json", action="store_true", help="print one object per line, as the benchmarks do"
    )
    args = parser.parse_args()
    variables, env, ratios = json.loads(CONVERSATION.read_text()), environment(), []
    for path in args.templates:
        name = pathlib.Path(path).stem
        template = env.from_string(pathlib.Path(path).read_text())
        ran = lambda *flags: subprocess.run(
            [args.bench, *flags, CONVERSATION, path], check=True, capture_output=True, text=True
        ).stdout
        try:
            text = template.render(**variables)
        except (jinja2.exceptions.TemplateError, TypeError) as error:
            print(f"{name} is skipped: it refuses this conversation: {error}", file=sys.stderr)
            continue
        if json.loads(ran("--text")) != text:
            sys.exit(f"{name}: the two texts differ")
        theirs = median_microseconds(lambda: template.render(**variables))
        ours = next(
            f["value"] for f in map(json.loads, ran("--json").splitlines()) if "render" in f["name"]
        )
        ratios.append(theirs / ours)
        if args.json:
            print(
                json.dumps(
                    {
                        "name": f"chat_template/{name}",
                        "value": ours,
                        "unit": "us",
                        "baseline": theirs,
                        "ratio": ours / theirs,
                        "runs": RUNS,
                    }
                )
            )
        else:
            times = f"{ours:8.1f} us   jinja2 {theirs:8.1f} us"
            print(f"{name:24} {times}   {theirs / ours:5.1f} times faster")
    if not args.json:
        print(f"{'median':24} {statistics.median(ratios):43.1f} times faster")


if __name__ == "__main__":
    main()
