"""Runs tests of one program inside a sandbox, each in a fresh process.

argv[1] is the kind of the sandbox: `namespaces` of its own, a `user` of its own, or `none`. argv[2]
is how many bytes all files of a test may have. The working folder is that of the tests. Requests
come on descriptor 0 and replies go to descriptor 1: a line of JSON each, followed by the raw bytes
that it announces. The processes of tests are forked from this one, so that they start with the
usual modules loaded, and hold none of its descriptors. Whatever they do, their output is only
passed on; nothing here judges it. solution.py, which runs a Python program, precedes this file.
"""
import ast
import atexit
import bisect
import collections
import copy
import ctypes
import dataclasses
import datetime
import decimal
import fractions
import functools
import gc
import heapq
import io
import itertools
import json
import math
import operator
import os
import random
import re
import resource
import select
import shutil
import signal
import statistics
import string
import sys
import threading
import time
import traceback
import types
import typing

KIND, BOX, BOX_BYTES = sys.argv[1], os.getcwd(), int(sys.argv[2])
# Whether other sandboxes write to the same file system.
IS_SHARED = KIND != "namespaces" and not os.path.ismount(BOX)
LEAST_FREE = 1 << 16
FOLDERS = [BOX, "/tmp"] if KIND == "namespaces" else [BOX]
PIECE = 1 << 16
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
# The path of a program that was compiled. Its bytes are written again for each test.
PROGRAM = BOX + "/program"
prctl = ctypes.CDLL(None, use_errno=True).prctl


class Requests:
    """The requests on descriptor 0."""

    def __init__(self):
        self.data = bytearray()

    def fill(self):
        piece = os.read(0, 1 << 20)
        if not piece:
            os._exit(0)
        self.data += piece

    def take(self, count):
        while len(self.data) < count:
            self.fill()
        taken = bytes(self.data[:count])
        del self.data[:count]
        return taken

    def next(self):
        """Returns the next request and the bytes that belong to it."""
        while b"\n" not in self.data:
            self.fill()
        request = json.loads(self.take(self.data.index(b"\n") + 1))
        return request, self.take(request["bytes"])


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def run_python(task, test, data):
    """Runs in the process of a test."""
    text = "" if test["kind"] == "stdio" else data.decode()
    report = run_solution(task["source"], test["kind"], text, task["function"])
    if report is not None:
        write_all(3, test["nonce"].encode() + report)


def run_child(task, test, data, binary):
    """The process of a test, from its fork to its end."""
    os.setsid()
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    # The kernel shall end this process for lack of memory, and not the driver.
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # The sandbox has no /proc.
    seconds = math.ceil(task["cpu_seconds"] * 1.2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    os.chdir(BOX)
    os.environ.update({"HOME": BOX, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"})
    if binary is not None:
        os.execv(binary[0], binary)
    code = 0
    try:
        run_python(task, test, data)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        code = code or 1
    os._exit(code & 0xFF)


def kill_others(group):
    """Ends all processes of the sandbox but this one, and returns their CPU time in seconds.

    Without a sandbox that would be all processes of the user, so only `group` is ended then.
    """
    cpu = 0.0
    end = time.monotonic() + 1
    while True:
        try:
            os.kill(-group if KIND == "none" else -1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu
        if pid != 0:
            cpu += usage.ru_utime + usage.ru_stime
        elif time.monotonic() > end:
            os._exit(3)
        else:
            time.sleep(0.0002)


def wipe():
    """Empties the folders that tests may write to. What resists ends this sandbox."""
    for folder in FOLDERS:
        names = os.listdir(folder)
        if not names:
            continue
        try:
            for path, folders, _ in os.walk(folder):
                os.chmod(path, 0o700)
            for name in names:
                path = folder + "/" + name
                if os.path.isdir(path) and not os.path.islink(path):
                    os.chmod(path, 0o700)
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
        except BaseException:
            os._exit(4)


def is_filled_by_others():
    """Whether nothing more can be written, though this test has kept to its own limit."""
    disk = os.statvfs(BOX)
    has_blocks = disk.f_blocks == 0 or disk.f_bavail * disk.f_frsize >= LEAST_FREE
    has_files = disk.f_files == 0 or disk.f_favail > 0
    if not IS_SHARED or (has_blocks and has_files):
        return False
    own = 0
    for path, folders, files in os.walk(BOX):
        for name in folders:
            if not os.path.islink(path + "/" + name):
                os.chmod(path + "/" + name, 0o700)
        own += sum(os.lstat(path + "/" + name).st_blocks * 512 for name in files)
    return own < BOX_BYTES


class Stream:
    """An output of the test's process, of which `limit` bytes are allowed and `kept` are kept."""

    def __init__(self, limit, kept, is_tail=False):
        self.fd, self.write_end = os.pipe()
        os.set_blocking(self.fd, False)
        self.limit, self.kept, self.is_tail = limit, kept, is_tail
        self.data, self.total = bytearray(), 0

    def read(self):
        """Returns false at the end."""
        try:
            piece = os.read(self.fd, PIECE)
        except BlockingIOError:
            return True
        self.total += len(piece)
        if self.is_tail:
            self.data += piece
            del self.data[:-self.kept]
        else:
            self.data += piece[:max(0, self.kept - len(self.data))]
        return bool(piece)

    def is_over(self):
        return self.total > self.limit


def run_test(task, test, data, binary):
    """Runs one test and returns its reply and the bytes that follow it."""
    out = Stream(task["output"], task["output"])
    err = Stream(1 << 62, 8192, is_tail=True)
    report = Stream(task["output"], task["output"])
    streams = [out, err, report]
    stdin, feed = os.pipe()
    pending = memoryview(data if test["kind"] == "stdio" else b"")

    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL if binary else signal.SIG_IGN)
        for target, fd in enumerate((stdin, out.write_end, err.write_end, report.write_end)):
            os.dup2(fd, target + 40)
        for target in range(4):
            os.dup2(target + 40, target)
        os.closerange(4, 512)
        try:
            run_child(task, test, data, binary)
        finally:
            os._exit(127)  # The program could not be started.

    os.close(stdin)
    for stream in streams:
        os.close(stream.write_end)
    os.set_blocking(feed, False)
    poll = select.poll()
    for stream in streams:
        poll.register(stream.fd, select.POLLIN)
    poll.register(WAKE_READ, select.POLLIN)
    if pending:
        poll.register(feed, select.POLLOUT)
    else:
        os.close(feed)
        feed = -1

    end = time.monotonic() + task["wall_seconds"]
    by_fd = {stream.fd: stream for stream in streams}
    why, status, cpu = "", None, 0.0
    while status is None and not why:
        left = end - time.monotonic()
        if left <= 0:
            why = "time"
            break
        for fd, _ in poll.poll(left * 1000 + 1):
            if fd == WAKE_READ:
                os.read(WAKE_READ, 512)
            elif fd == feed:
                try:
                    pending = pending[os.write(feed, pending[:PIECE]):]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    pending = b""
                if not pending:
                    poll.unregister(feed)
                    os.close(feed)
                    feed = -1
            elif not by_fd[fd].read():
                poll.unregister(fd)
            elif by_fd[fd].is_over():
                why = "output"
        while True:
            try:
                ended, ended_status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if ended == 0:
                break
            cpu += usage.ru_utime + usage.ru_stime
            if ended == pid:
                status = ended_status

    cpu += kill_others(pid)
    if feed >= 0:
        os.close(feed)
    # Nobody writes any more, so each stream ends.
    for stream in streams:
        while not stream.is_over() and stream.read():
            pass
        os.close(stream.fd)
        if stream.is_over():
            why = why or "output"

    # Whatever the test did, it might have done otherwise.
    if is_filled_by_others():
        why = "full"
    reply = {"why": why, "cpu": cpu, "code": -1, "signal": 0}
    if status is not None:
        if os.WIFEXITED(status):
            reply["code"] = os.WEXITSTATUS(status)
        else:
            reply["signal"] = os.WTERMSIG(status)
    return reply, [bytes(out.data), bytes(err.data), bytes(report.data)]


def send(reply, parts):
    reply["parts"] = [len(part) for part in parts]
    write_all(1, json.dumps(reply).encode() + b"\n" + b"".join(parts))


def main():
    # Nobody in the sandbox may look into this process, or into its descriptors.
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    global WAKE_READ
    WAKE_READ, wake = os.pipe()
    for fd in (WAKE_READ, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    send({"ready": sys.version}, [])

    requests, task, program = Requests(), None, b""
    gc.freeze()
    while True:
        request, data = requests.next()
        if "task" in request:
            task, program = request["task"], data
            if task["language"] == "python":
                task["source"] = data.decode("utf-8", "replace")
            continue
        # Others may end while the test runs. What it could not write before says nothing about it.
        binary, full = None, is_filled_by_others()
        if task["language"] == "binary" and not full:
            try:
                with open(PROGRAM, "wb") as file:
                    file.write(program)
                os.chmod(PROGRAM, 0o700)
                binary = [PROGRAM]
            except OSError:
                full = True
        if full:
            send({"why": "full", "cpu": 0, "code": -1, "signal": 0}, [b"", b"", b""])
            wipe()
            continue
        if task["language"] == "compile":
            binary = task["argv"]
        reply, parts = run_test(task, request, data, binary)
        if task["language"] == "compile":
            parts[2] = b""
            if reply["code"] == 0 and os.path.isfile(PROGRAM):
                with open(PROGRAM, "rb") as file:
                    parts[2] = file.read(task["program_bytes"] + 1)
        send(reply, parts)
        wipe()


main()
