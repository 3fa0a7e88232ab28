"""Serves reward functions in Python to Sluice.

    python3 sluice_reward.py --verl my_reward.py:compute_score
    python3 sluice_reward.py --trl my_rewards.py:format_reward
    python3 sluice_reward.py --native my_reward.py

sluice-reward starts it like this for the verifier `plugin`, so a job needs only the function:

    - {name: correct, verifier: plugin, args: {verl: my_reward.py:compute_score}}

A reward of your own is a function with the decorator `reward`:

    from sluice_reward import reward

    @reward
    def score(item):
        return float(item["completion"].strip() == item["ground_truth"])

A reward function returns a number, or a mapping with the number `score`; its other numbers become
parts of the score, and the rest goes into the record of the score. None means that the reward does
not apply to the answer (with verl's convention it is an error). An exception, NaN, infinity or
another type is an error with its cause, and never a score.

The protocol is one JSON object per line on stdin and stdout. What the function prints goes to
stderr. This file needs only the standard library of Python 3.8 or later.
"""

import argparse
import asyncio
import concurrent.futures
import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
import threading
import traceback

MAX_INFO_BYTES = 4096
# Errors of the machine or the network: another try may succeed.
RETRYABLE = (OSError, TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)


class BadScore(Exception):
    """The function returned something that is no score."""


class Absent(Exception):
    """The reward does not apply to the answer."""


class Reward:
    """A reward function and what Sluice must know about it.

    function: takes an item, or with granularity "group" the list of all items of a group, and
        returns a score, or a list of as many scores. It may be async. If it has a parameter
        `config`, it gets the mapping `config` of the job's reward.
    self_test: list of (item, score), which must come out before the function is used. Of a group,
        (items, scores).
    max_in_flight: number of calls at a time; above 1 they run on threads.
    """

    def __init__(self, function, granularity="trajectory", self_test=(), max_in_flight=1):
        if granularity not in ("trajectory", "group"):
            raise ValueError(f'granularity is "{granularity}"; wanted: trajectory or group')
        self.function = function
        self.name = getattr(function, "__name__", "reward")
        self.granularity = granularity
        self.self_test = list(self_test)
        self.max_in_flight = max_in_flight
        self.takes_config = "config" in inspect.signature(function).parameters

    def score(self, items, config):
        """Returns one result for each item."""
        extra = {"config": config} if self.takes_config else {}
        if self.granularity == "trajectory":
            return [attempt(lambda item=item: read_score(run(self.function, item, **extra)))
                    for item in items]
        return read_list(lambda: run(self.function, items, **extra), len(items))


def reward(function=None, **options):
    """Decorator that makes a Reward; the options are those of Reward."""
    if function is None:
        return lambda decorated: Reward(decorated, **options)
    return Reward(function, **options)


class Convention(Reward):
    """A function whose keyword arguments have the names of another framework."""

    def __init__(self, function, max_in_flight):
        super().__init__(function, self_test=module_self_test(function),
                         max_in_flight=max_in_flight)
        self.accepted = accepted_names(function)


class VerlReward(Convention):
    """A function in verl's convention: compute_score(data_source, solution_str, ground_truth,
    extra_info, **reward_kwargs). A parameter that the function lacks is left out."""

    def score(self, items, config):
        return [attempt(lambda item=item: self.score_item(item, config)) for item in items]

    def score_item(self, item, config):
        columns = item.get("extra_info") or {}
        truth = item.get("ground_truth")
        model = columns.get("reward_model")
        if truth is None and isinstance(model, dict):
            truth = model.get("ground_truth")
        info = columns.get("extra_info")
        call = {"data_source": columns.get("data_source") or item.get("data_source"),
                "solution_str": item["completion"],
                "ground_truth": truth,
                "extra_info": info if isinstance(info, dict) else columns}
        call.update(config)
        value = run(self.function, **keep(call, self.accepted))
        if value is None:
            raise BadScore("it returned None, which is no score")
        return read_score(value)


class TrlReward(Convention):
    """A function in TRL's convention: fn(prompts, completions, completion_ids, trainer_state,
    log_extra, log_metric, **columns), which returns a list with a score or None for each."""

    def score(self, items, config):
        return read_list(lambda: self.score_items(items, config), len(items))

    def score_items(self, items, config):
        # Prompts that are lists of messages have completions that are lists of messages.
        chat = [isinstance(item.get("prompt"), list) for item in items]
        call = {"prompts": [item.get("prompt") for item in items],
                "completions": [[{"role": "assistant", "content": item["completion"]}]
                                if is_chat else item["completion"]
                                for item, is_chat in zip(items, chat)],
                "trainer_state": TrainerState(),
                "log_extra": lambda *args, **kwargs: None,
                "log_metric": lambda *args, **kwargs: None}
        if all("completion_ids" in item for item in items):
            call["completion_ids"] = [item["completion_ids"] for item in items]
        elif "completion_ids" in inspect.signature(self.function).parameters:
            raise BadScore("it takes completion_ids, but Sluice gives rewards the text only")
        columns = [dict(item.get("extra_info") or {}) for item in items]
        for column, item in zip(columns, items):
            column.setdefault("answer", item.get("ground_truth"))
        for name in columns[0] if columns else ():
            call.setdefault(name, [column.get(name) for column in columns])
        for name, value in config.items():
            call.setdefault(name, value)
        return run(self.function, **keep(call, self.accepted))


class TrainerState:
    """Stands in for transformers' TrainerState: rewards of Sluice do not depend on the step."""
    global_step = max_steps = epoch = 0
    log_history = ()


def accepted_names(function):
    """The names of the parameters; None if it takes any keyword."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def keep(call, names):
    return call if names is None else {name: call[name] for name in call if name in names}


_loops = threading.local()


def run(function, *args, **kwargs):
    """Calls the function, and waits for its result if it is async."""
    value = function(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    if not hasattr(_loops, "loop"):
        _loops.loop = asyncio.new_event_loop()

    async def wait():
        return await value

    return _loops.loop.run_until_complete(wait())


def attempt(score):
    """Returns the result of score(), or the error that it raises."""
    try:
        return score()
    except Absent:
        return {}
    except BadScore as error:
        return {"error": str(error), "retryable": False}
    except BaseException as error:  # Also SystemExit: exit() in a function is no score.
        return {"error": describe(error), "retryable": isinstance(error, RETRYABLE)}


def describe(error):
    """For example: KeyError: 'answer' (my_reward.py:12, in compute_score)."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()[-1000:]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if frame.filename != describe.__code__.co_filename]
    if not frames:
        return text
    last = frames[-1]
    return f"{text} ({os.path.basename(last.filename)}:{last.lineno}, in {last.name})"


def read_list(call, size):
    """The results of a function that scores several answers at once."""
    called = attempt(lambda: {"scores": check_list(call(), size)})
    if "scores" not in called:
        return [called] * size
    return [attempt(lambda score=score: read_score(score)) for score in called["scores"]]


def check_list(scores, size):
    if hasattr(scores, "tolist"):  # An array or tensor.
        scores = scores.tolist()
    if not isinstance(scores, (list, tuple)):
        raise BadScore(f"it returned {type(scores).__name__}; wanted: a list of {size} scores")
    if len(scores) != size:
        raise BadScore(f"it returned {len(scores)} scores for {size} answers")
    return scores


def read_score(value):
    if value is None:
        raise Absent()
    if not isinstance(value, dict):
        return {"score": read_number(value)}
    if value.get("score") is None:
        raise BadScore(f"it returned a mapping without `score`: {sorted(map(str, value))}")
    result, info = {"score": read_number(value["score"]), "parts": {}}, {}
    for name, part in value.items():
        try:
            result["parts"][str(name)] = read_number(part)
        except BadScore:
            info[str(name)] = part
    del result["parts"]["score"]
    try:
        text = json.dumps(info, default=str, skipkeys=True)
    except ValueError:  # It contains itself.
        text = "{}"
    # NaN and infinity are no JSON, and become texts.
    result["info"] = (json.loads(text, parse_constant=str) if len(text) <= MAX_INFO_BYTES
                      else {"cut": text[:1024]})
    return result


def read_number(value):
    if hasattr(value, "item") and not isinstance(value, (int, float)):  # Of numpy or torch.
        try:
            value = value.item()
        except Exception as error:
            raise BadScore(f"it returned an array where a number is wanted: {error}") from error
    if not isinstance(value, (int, float)):
        raise BadScore(f"it returned {repr(value)[:200]}, a {type(value).__name__}; "
                       "wanted: a number")
    try:
        value = float(value)
    except OverflowError:
        raise BadScore("it returned a whole number that is too large") from None
    if not math.isfinite(value):
        raise BadScore(f"it returned {value}, which is not finite")
    return value


def load_module(name):
    """Imports a file, with its folder on the path, or a module by its name."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = os.path.abspath(name)
    sys.path.insert(0, os.path.dirname(path))
    module_name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def load_function(place):
    name, colon, function = place.rpartition(":")
    if not colon:
        raise SystemExit(f'"{place}" names no function; wanted: file.py:function')
    found = getattr(load_module(name), function, None)
    if not callable(found):
        raise SystemExit(f"{name} has no function {function}")
    return found


def module_self_test(function):
    """A module may have a list `self_test` of (item, score)."""
    module = sys.modules.get(getattr(function, "__module__", None))
    return getattr(module, "self_test", ())


def load_native(name):
    file, colon, chosen = name.rpartition(":")
    module = load_module(file if colon else name)
    rewards = [value for key, value in vars(module).items()
               if isinstance(value, Reward) and (not colon or key == chosen)]
    if len(rewards) != 1:
        raise SystemExit(f"{name} has {len(rewards)} functions with the decorator "
                         "sluice_reward.reward; wanted: one, or file.py:function")
    return rewards[0]


class Lines:
    """The pipes to Sluice. The standard streams are taken away from the reward function."""

    def __init__(self):
        self.lock = threading.Lock()
        self.input = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
        self.output = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    def read(self):
        line = self.input.readline()
        return json.loads(line) if line else None

    def write(self, message):
        rest = memoryview(json.dumps(message, allow_nan=False).encode() + b"\n")
        with self.lock:
            while rest:
                rest = rest[os.write(self.output, rest):]


def serve(served, lines=None):
    """Answers Sluice until it closes stdin. `served` is a Reward, or a function that makes one."""
    lines = lines or Lines()
    hello = lines.read()
    if not hello or hello.get("sluice") != 1:
        raise SystemExit("this program is started by sluice-reward: it reads JSON lines on stdin")
    if not isinstance(served, Reward):
        try:
            served = served()
        except Exception as error:
            raise SystemExit(describe(error)) from None
    config = hello.get("config") or {}
    lines.write({"name": served.name,
                 "version": "",
                 "granularity": served.granularity,
                 "max_in_flight": served.max_in_flight,
                 "self_test": [{"item": item, "score": score}
                               for item, score in served.self_test]})

    def answer(request):
        lines.write({"id": request["id"], "results": served.score(request["items"], config)})

    if served.max_in_flight == 1:
        for request in iter(lines.read, None):
            answer(request)
        return
    with concurrent.futures.ThreadPoolExecutor(served.max_in_flight) as pool:
        for request in iter(lines.read, None):
            pool.submit(answer, request).add_done_callback(end_if_broken)


def end_if_broken(done):
    """Without its answer a call would wait for its deadline."""
    if done.exception() is not None:
        traceback.print_exception(type(done.exception()), done.exception(),
                                  done.exception().__traceback__)
        os._exit(1)


def main():
    # `import sluice_reward` in the user's file gives this module, whatever it was started as.
    sys.modules["sluice_reward"] = sys.modules["__main__"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    convention = parser.add_mutually_exclusive_group(required=True)
    convention.add_argument("--verl", metavar="FILE.py:FUNCTION", help="in verl's convention")
    convention.add_argument("--trl", metavar="FILE.py:FUNCTION", help="in TRL's convention")
    convention.add_argument("--native", metavar="FILE.py[:FUNCTION]", help="with @reward")
    parser.add_argument("--max-in-flight", type=int, default=1, metavar="N",
                        help="calls of the function at a time, on threads")
    flags = parser.parse_args()

    def make():
        if flags.verl:
            return VerlReward(load_function(flags.verl), flags.max_in_flight)
        if flags.trl:
            return TrlReward(load_function(flags.trl), flags.max_in_flight)
        return load_native(flags.native)

    serve(make, Lines())


if __name__ == "__main__":
    main()
