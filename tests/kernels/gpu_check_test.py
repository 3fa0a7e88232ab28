"""Tests of tools/gpu_check.py that need neither a GPU nor a compiler: its commands are replaced."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import gpu_check  # pylint: disable=wrong-import-position

PROGRAMS = {name: ([f"{name}.cu"], []) for name in (gpu_check.CARD, "sample")}


class FakeBuilder:
    """Builds nothing. The links of the programs `broken` fail."""

    def __init__(self, report, broken):
        self.report = report
        self.broken = broken

    def add(self, kind, source, command):
        return f"{kind}-{source}.o"

    def build(self):
        return True

    def link(self, name, command):
        if name not in self.broken:
            return f"/built/{name}"
        self.report.step(f"link {name}", "failed")
        return None


class GpuCheckTest(unittest.TestCase):
    def check(self, broken):
        """Returns the report of a run on a GPU, with compute-sanitizer, and what was run."""
        commands = []

        def run(command, seconds, environment=None):
            commands.append(" ".join(map(str, command)))
            return 0, "", 0.0

        with (tempfile.TemporaryDirectory() as folder, mock.patch.object(gpu_check, "run", run),
              mock.patch.object(gpu_check, "find_tool", lambda name: name),
              contextlib.redirect_stdout(io.StringIO())):
            report = gpu_check.Report(pathlib.Path(folder) / "gpu_check.json", 100)
            gpu_check.check_on_gpu(report, FakeBuilder(report, broken), PROGRAMS, "nvcc", "90")
        return report, commands

    def test_a_program_that_does_not_link_is_reported_and_the_others_are_checked(self):
        report, commands = self.check([gpu_check.CARD])
        self.assertTrue(report.failed)
        self.assertIn("/built/sample", commands)
        for tool in gpu_check.TOOLS:
            self.assertIn(f"compute-sanitizer --tool {tool} --error-exitcode 9 "
                          "/built/sample --small", commands)

    def test_if_no_program_links_nothing_is_run(self):
        report, commands = self.check(list(PROGRAMS))
        self.assertTrue(report.failed)
        self.assertEqual(commands, [])


if __name__ == "__main__":
    unittest.main()
