"""Runs a Python program of an answer on one test, in the process of that test."""
import collections
import json
import random
import sys
import types


def encode(value, depth=0):
    """The JSON form of a result, in which a tuple is a list."""
    if depth > 200:
        raise ValueError("the result is nested too deeply")
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or isinstance(value, bool) else str.__str__(value)
    if isinstance(value, int):
        return {"int": int.__repr__(value)}
    if isinstance(value, float):
        return {"float": float.__repr__(value)}
    if isinstance(value, (list, tuple, collections.deque)):
        return [encode(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"set": [encode(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    if isinstance(value, complex):
        return {"complex": [float.__repr__(value.real), float.__repr__(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    raise TypeError("a result of type %s cannot be compared" % type(value).__name__)


def find_function(scope, name):
    if name in scope:
        return scope[name]
    if "Solution" in scope and hasattr(scope["Solution"], name):
        return getattr(scope["Solution"](), name)
    raise NameError("the program defines no function %r" % name)


def run_solution(source, kind, data, function):
    """Runs the program, and after it the call, expression or assertions of `data`.

    Returns the result's JSON, nothing for assertions, or None if the test has no result.
    """
    module = types.ModuleType("__main__" if kind == "stdio" else "solution")
    sys.modules[module.__name__] = module
    sys.argv = ["solution.py"]
    random.seed(0)
    scope = module.__dict__
    exec(compile(source, "solution.py", "exec"), scope)
    if kind == "stdio":
        return None
    if kind == "assert":
        exec(compile(data, "test.py", "exec"), scope)
        return b""
    if kind == "call":
        result = find_function(scope, function)(*json.loads(data))
    else:
        result = eval(compile(data, "test.py", "eval"), scope)
    return json.dumps(encode(result)).encode()


