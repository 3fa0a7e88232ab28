"""Does the work of tools/gpu_check.sh. EPILOG below is part of its --help.

Each folder kernels/<op>/ that has a .cu file is built into one program, together with
tests/kernels/<op>/cuda_check.cu. One more program is built from tests/kernels/cuda; it measures the
card. The result of each step is written to the JSON file at once, so that an interrupted run keeps
its results so far.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

EPILOG = """
On a machine with a GPU and nvcc:
  1. builds kernels/*/*.cu and their checks for the card, with nvcc and g++ alone
  2. runs the checks against the CPU references
  3. measures each kernel and, for comparison, a plain copy and a plain multiply-add on the card
  4. runs the checks again, with small inputs, under compute-sanitizer's four tools
Elsewhere, or with --emulate:
  1. compiles the same files with nvcc for sm_80 and sm_90 (reported as skipped without nvcc)
  2. runs the checks and each measurement once on the CPU, with small inputs, on tests/cuda_emulator
In both cases, a .cu file that no program runs is an error. The exit code is 0 if nothing failed.

examples:
  tools/gpu_check.sh                                   # with a GPU: the first thing to run
  tools/gpu_check.sh --out gpu.json --seconds 300
  tools/gpu_check.sh --emulate                         # no GPU needed
  tools/gpu_check.sh --emulate --install-nvcc          # nvcc from PyPI, if it is missing
  tools/gpu_check.sh --emulate --only sample --seed 7  # one kernel, in another order
"""

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECK_MAIN = "tests/kernels/cuda/check_main.cu"
CARD = "card"  # The program of tests/kernels/cuda, with the benches "copy" and "fma".
EMULATOR = ["collectives.cc", "hooks.cc", "memory.cc", "report.cc", "runtime.cc", "threads.cc"]
# Kernels that test the emulator itself. tests/cuda_emulator/emulator_test.cc runs them.
EMULATOR_TESTS = ["tests/cuda_emulator/planted.cu"]
ARCHITECTURES = ["80", "90"]
TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
STEP_SECONDS = 150  # Longest time of one step.

CXX = ["g++", "-std=c++20", "-I."]
# -O1 is for host code. nvcc always optimises device code.
NVCC = ["-std=c++20", "--fmad=false", "-O1", "-lineinfo", "-DSLUICE_CUDA=1", "-I."]
# The references give the same bits at every optimisation level, because nothing is contracted to a
# fused multiply-add or reordered.
REFERENCE = [*CXX, "-O1", "-ffp-contract=off", "-Wno-psabi"]
EMULATED = [*CXX, "-Itests/cuda_emulator", "-O1", "-g"]
# Every memory access calls the emulator's hooks (hooks.cc). Undefined behaviour ends the program.
INSTRUMENTED = [
    *EMULATED, "-ffp-contract=off", "-fno-threadsafe-statics", "-fsanitize=thread", "--param",
    "tsan-instrument-func-entry-exit=0", "-fsanitize=undefined", "-fno-sanitize=vptr",
    "-fno-sanitize-recover=undefined", "-Wno-unknown-pragmas", "-DSLUICE_CUDA=1"]


class Report:
    """Collects the results: writes the JSON file and prints each step."""

    def __init__(self, path, seconds):
        self.path = path
        self.begin = time.monotonic()
        self.end = self.begin + seconds
        self.failed = False
        self.json = {"form": None, "passed": False, "seconds": 0, "deadline_seconds": seconds,
                     "device": None, "nvcc": None, "steps": [], "cases": [], "figures": []}

    def left(self):
        return self.end - time.monotonic()

    def step(self, name, status, seconds=0.0, message=""):
        self.failed |= status == "failed"
        self.json["steps"].append({"step": name, "status": status, "seconds": round(seconds, 2),
                                   "message": message})
        print(f"{status:8}{seconds:7.1f} s  {name}", flush=True)
        if message:
            print("".join(f"    {line}\n" for line in message.splitlines()), end="", flush=True)
        self.write()

    def write(self):
        self.json["seconds"] = round(time.monotonic() - self.begin, 2)
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(self.json, indent=1) + "\n", encoding="utf-8")
        part.replace(self.path)


def run(command, seconds, environment=None):
    """Runs a command. Returns its exit code (None: out of time), output and time in seconds."""
    begin = time.monotonic()
    if seconds < 1:  # For `timeout`, 0 means no limit.
        return None, "", 0.0
    # If this script is killed, `timeout` lives on and still ends the command and its children.
    process = subprocess.run(
        ["timeout", "-k", "1", f"{seconds:.1f}", *map(str, command)], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        errors="replace", env={**os.environ, **(environment or {})}, check=False)
    took = time.monotonic() - begin
    # `timeout` exits with these codes when it ends the command. The command itself may exit with
    # them too, but earlier.
    late = process.returncode in (124, 137, -9) and took >= seconds
    return None if late else process.returncode, process.stdout, took


def find_programs():
    """Returns {name: (.cu files, C++ references)}. Exits if a .cu file is in no program."""
    programs = {CARD: (["tests/kernels/cuda/cuda_check.cu", CHECK_MAIN], [])}
    for folder in sorted((ROOT / "kernels").iterdir()):
        kernels = sorted(str(path.relative_to(ROOT)) for path in folder.glob("*.cu"))
        if not kernels:
            continue
        check = f"tests/kernels/{folder.name}/cuda_check.cu"
        if not (ROOT / check).exists():
            sys.exit(f"error: no program runs {kernels[0]}: there is no {check}\n"
                     "hint: CONTRIBUTING.md says how a kernel is checked")
        references = sorted(str(path.relative_to(ROOT)) for path in folder.glob("*.cc"))
        programs[folder.name] = ([*kernels, check, CHECK_MAIN], references)
    covered = {path for sources, _ in programs.values() for path in sources} | set(EMULATOR_TESTS)
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name != "build" and not name.startswith(".")]
        for name in files:
            path = str((pathlib.Path(folder) / name).relative_to(ROOT))
            if name.endswith(".cu") and path not in covered:
                sys.exit(f"error: {path} is run by no program of tools/gpu_check.py\n"
                         "hint: kernels are kernels/<op>/*.cu, their checks "
                         "tests/kernels/<op>/cuda_check.cu")
    return programs


def find_tool(name):
    bundled = sorted(ROOT.glob(f".deps/cuda/nvidia/*/bin/{name}"))
    for path in [shutil.which(name), f"/usr/local/cuda/bin/{name}", *bundled]:
        if path and os.access(path, os.X_OK):
            return str(path)
    return None


class Builder:
    """Compiles into one folder, and compiles again only files that have changed."""

    def __init__(self, folder, report, jobs):
        self.folder = folder
        self.report = report
        # (name, command that makes the file to compile, or None, compile command, source, object)
        self.jobs = []
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        # The hash of all files that a source may include, and of the scripts.
        self.headers = hashlib.sha256()
        for top in ["kernels", "tests/kernels", "tests/cuda_emulator"]:
            for path in sorted((ROOT / top).rglob("*")):
                if path.suffix in (".h", ".inc", ".cuh", ".py"):
                    self.headers.update(path.read_bytes())
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, kind, source, command, before=None):
        """Plans an object of `source` and returns its path. `before` is a command that makes the
        file that `command` compiles."""
        out = self.folder / f"{kind}-{source.replace('/', '-')}.o"
        job = (f"{kind}: {source}", before, [*command, "-c", "-o", out], source, out)
        if job not in self.jobs:
            self.jobs.append(job)
        return out

    def _make(self, job):
        name, before, command, source, out = job
        key = self.headers.copy()
        key.update((ROOT / source).read_bytes() + repr((before, command)).encode())
        stamp = out.with_suffix(".key")
        if out.exists() and stamp.exists() and stamp.read_text() == key.hexdigest():
            return name, 0, "", 0.0
        stamp.unlink(missing_ok=True)
        seconds = 0.0
        for part in [before, command]:
            if part is None:
                continue
            code, output, took = run(part, min(STEP_SECONDS, self.report.left()))
            seconds += took
            if code != 0:
                return name, code, output, seconds
        stamp.write_text(key.hexdigest())
        return name, 0, "", seconds

    def build(self):
        """Builds the planned objects. Returns True if all succeeded."""
        good = True
        for name, code, output, seconds in self.pool.map(self._make, self.jobs):
            good &= code == 0
            message = "" if code == 0 else describe_failure(output, code)
            self.report.step(name, "passed" if code == 0 else "failed", seconds, message)
        self.jobs = []
        return good

    def link(self, name, command):
        out = self.folder / name
        code, output, seconds = run([*command, "-o", out], min(STEP_SECONDS, self.report.left()))
        if code != 0:
            self.report.step(f"link {name}", "failed", seconds, describe_failure(output, code))
        return out if code == 0 else None


def describe_failure(output, code):
    """Returns the end of a failed command's output, and how the command ended."""
    return (output[-3000:] + ("out of time" if code is None else f"exit code {code}")).lstrip()


def run_program(report, name, command, what, environment=None):
    """Runs one program, and adds the cases and figures that it prints to the report."""
    code, output, seconds = run(command, min(STEP_SECONDS, report.left()), environment)
    text, failed = "", code != 0
    for line in output.splitlines():
        try:
            entry = json.loads(line) if line.startswith("{") else None
        except json.JSONDecodeError:  # The program ended in the middle of this line.
            entry = None
        if entry is None:
            text += line + "\n"
            continue
        if "case" in entry:
            report.json["cases"].append({"program": name, "run": what, **entry})
        elif "bench" in entry:
            report.json["figures"].append({"program": name, **entry})
        elif report.json["device"] is None:
            report.json["device"] = entry
    report.step(f"{what}: {name}", "failed" if failed else "passed", seconds,
                describe_failure(text, code) if failed else "")


def add_ratios(figures):
    """Adds to each figure its ratio to the speed of the plain copy and the plain multiply-add."""
    card = {entry["bench"]: entry for entry in figures if entry["program"] == CARD}
    for entry in figures:
        for field, bench, ratio in [("gb_per_s", "copy", "of_copy"),
                                    ("gflop_per_s", "fma", "of_fma")]:
            if bench in card:
                entry[ratio] = round(entry[field] / card[bench][field], 4)
        print(f"  {entry['program']:12} {entry['bench']:28} {entry['microseconds']:12.1f} us "
              f"{entry['gb_per_s']:9.1f} GB/s {100 * entry.get('of_copy', 0):5.1f} % "
              f"{entry['gflop_per_s']:10.1f} GFLOP/s {100 * entry.get('of_fma', 0):5.1f} %")


def query_gpu():
    """Returns (compute capability such as "90", driver) of the first GPU, or None without one."""
    if not shutil.which("nvidia-smi"):
        return None
    code, output, _ = run(["nvidia-smi", "--query-gpu=compute_cap,driver_version",
                           "--format=csv,noheader"], 30)
    found = re.match(r"(\d+)\.(\d+), *(\S+)", output)
    return (found[1] + found[2], found[3]) if code == 0 and found else None


def nvcc_version(nvcc):
    code, output, _ = run([nvcc, "--version"], 30)
    found = re.search(r"release .*, V(\S+)", output)
    return found[1] if code == 0 and found else None


def check_on_gpu(report, builder, programs, nvcc, capability):
    target = ["-gencode", f"arch=compute_{capability},code=sm_{capability}"]
    objects = {
        name: [builder.add("nvcc", source, [nvcc, *NVCC, *target, source]) for source in sources] +
              [builder.add("reference", source, [*REFERENCE, source]) for source in references]
        for name, (sources, references) in programs.items()}
    if not builder.build():
        return
    built = {name: builder.link(name, [nvcc, *target, *files]) for name, files in objects.items()}
    built = {name: path for name, path in built.items() if path is not None}
    for name, path in built.items():
        run_program(report, name, [path], "check")
    for name, path in built.items():
        run_program(report, name, [path, "--bench"], "measure")
    add_ratios(report.json["figures"])
    if not built:  # The report has the links that failed.
        return
    sanitizer = find_tool("compute-sanitizer")
    if sanitizer is None:
        report.step("compute-sanitizer", "skipped", 0, "there is no compute-sanitizer")
        return
    # Some virtual machines deny compute-sanitizer access to the device. One try shows this.
    first = next(iter(built.values()))
    code, output, seconds = run([sanitizer, first, "--small"], min(60, report.left()))
    if code != 0 and "not supported" in output:
        report.step("compute-sanitizer", "skipped", seconds, output[-500:])
        return
    for tool in TOOLS:
        for name, path in built.items():
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9", path, "--small"]
            run_program(report, name, command, tool)


def target_options(source):
    """Returns nvcc's target options: kernels are compiled for each architecture, checks for one."""
    architectures = ARCHITECTURES if source.startswith("kernels/") else ARCHITECTURES[:1]
    return [word for architecture in architectures
            for word in ["-gencode", f"arch=compute_{architecture},code=sm_{architecture}"]]


def check_by_emulator(report, builder, programs, nvcc, references, seed):
    if nvcc is None:
        report.step("compile with nvcc", "skipped", 0,
                    "there is no nvcc; tools/gpu_check.sh --install-nvcc installs it")
    emulator = [
        builder.add("emulator", source, [*EMULATED, source])
        for source in (f"tests/cuda_emulator/{name}" for name in EMULATOR)]
    objects = {}
    for name, (sources, reference_sources) in programs.items():
        objects[name] = [*references]
        if not references:
            objects[name] += [builder.add("reference", source, [*REFERENCE, source])
                              for source in reference_sources]
        for source in sources:
            rewritten = builder.folder / f"rewritten-{source.replace('/', '-')}.cc"
            rewrite = [sys.executable, "tests/cuda_emulator/rewrite.py", ".", source, rewritten]
            objects[name].insert(
                0, builder.add("emulated", source, [*INSTRUMENTED, rewritten], rewrite))
            if nvcc is not None:
                builder.add("nvcc", source, [nvcc, *NVCC, *target_options(source), source])
    if not builder.build():
        return
    environment = {"CUDA_EMULATOR_SEED": str(seed)}
    for name, files in objects.items():
        # Instrumented objects come first, because the linker keeps the first of two copies of a
        # template.
        path = builder.link(f"{name}-emulated", ["g++", *files, *emulator, "-lubsan"])
        if path is not None:
            run_program(report, name, [path, "--small"], "emulated check", environment)
            run_program(report, name, [path, "--small", "--bench"], "emulated measurement",
                        environment)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="tools/gpu_check.sh", description="Checks every CUDA kernel of the tree.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulate", action="store_true",
                        help="run on the CPU even if there is a GPU")
    parser.add_argument("--out", type=pathlib.Path,
                        help="the JSON file of the results (default: DIR/gpu_check.json)")
    parser.add_argument("--seconds", type=float, default=530,
                        help="time limit of the whole run (default: 530)")
    parser.add_argument("--build", type=pathlib.Path, metavar="DIR", default="build/gpu_check",
                        help="folder of the build products (default: build/gpu_check)")
    parser.add_argument("--only", action="append", metavar="KERNEL",
                        help="check only this folder of kernels/; may be repeated")
    parser.add_argument("--seed", type=int, default=1,
                        help="seed of the emulator's order of threads and blocks; "
                             "0 runs them in the order of their numbers (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(),
                        help="number of compilers that run at a time (default: one per CPU)")
    parser.add_argument("--install-nvcc", action="store_true",
                        help="install nvcc into .deps/ from PyPI if there is none")
    parser.add_argument("--references", nargs="*", default=[], type=pathlib.Path,
                        metavar="ARCHIVE",
                        help="with --emulate: link these built CPU references instead of "
                             "compiling them")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    folder = arguments.build.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    report = Report((arguments.out or folder / "gpu_check.json").absolute(), arguments.seconds)
    programs = find_programs()
    if arguments.only:
        unknown = set(arguments.only) - set(programs)
        if unknown:
            sys.exit(f"error: kernels/{unknown.pop()} has no .cu file; "
                     f"choose from {sorted(programs)}")
        programs = {name: programs[name] for name in {CARD: 0, **dict.fromkeys(arguments.only)}}
    nvcc = find_tool("nvcc")
    gpu = None if arguments.emulate else query_gpu()
    if nvcc is not None:
        report.json["nvcc"] = nvcc_version(nvcc)
    builder = Builder(folder, report, arguments.jobs)
    if gpu is not None and nvcc is not None:
        capability, driver = gpu
        report.json.update(form="gpu", driver=driver)
        check_on_gpu(report, builder, programs, nvcc, capability)
    else:
        report.json.update(form="emulated", seed=arguments.seed)
        if gpu is not None:
            report.step("run on the GPU", "failed", 0, "there is a GPU but no nvcc; "
                        "tools/gpu_check.sh --install-nvcc installs it")
        references = [path.absolute() for path in arguments.references]
        check_by_emulator(report, builder, programs, nvcc, references, arguments.seed)
    report.json["passed"] = not report.failed
    report.write()
    skipped = sum(step["status"] == "skipped" for step in report.json["steps"])
    print(f"{'failed' if report.failed else 'passed'} ({report.json['form']}, {skipped} skipped) "
          f"in {report.json['seconds']} s: {report.path}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
