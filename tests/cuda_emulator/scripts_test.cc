// Tests the scripts around the emulator: rewrite.py, and the runs of tools/gpu_check.py.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Ran {
  int code = 0;
  std::string output;
};
Ran RunCommand(const std::string& command) {
  Ran ran;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof(buffer), pipe))
    ran.output.append(buffer, count);
  ran.code = pclose(pipe);
  return ran;
}

class ScriptsTest : public testing::Test {
 protected:
  void SetUp() override {
    tree_ = testing::TempDir() + "scripts_test_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(tree_);
    std::filesystem::create_directories(tree_);
  }
  void TearDown() override { std::filesystem::remove_all(tree_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(tree_ + "/" + path).parent_path());
    std::ofstream(tree_ + "/" + path) << text;
  }
  std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(tree_ + "/" + path).rdbuf();
    return text.str();
  }
  Ran Rewrite(const std::string& text) {
    Write("a.cu", text);
    return RunCommand("python3 '" SLUICE_SOURCE_DIR "/tests/cuda_emulator/rewrite.py' '" + tree_ +
                      "' a.cu '" + tree_ + "/a.cc'");
  }

  std::string tree_;
};

TEST_F(ScriptsTest, ALaunchBecomesACallAndKeepsItsLines) {
  const Ran ran =
      Rewrite("void f() {\n  g::Kernel<A<int>><<<b(1, 2),\n      64>>>(x,\n y);\n}\nlast");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const std::string text = Read("a.cc");

  EXPECT_THAT(text,
              HasSubstr("Launch(\"g::Kernel<A<int>>\", ::sluice::cuda_emulator::Config(b(1, 2),"));
  EXPECT_THAT(text, HasSubstr("[](auto... cuda_emulator_args) { "
                              "g::Kernel<A<int>>(cuda_emulator_args...); }, x,"));

  const std::string before_last = text.substr(0, text.find("last"));
  // rewrite.py puts two lines in front.
  EXPECT_EQ(std::count(before_last.begin(), before_last.end(), '\n'), 2 + 5);
}

TEST_F(ScriptsTest, EachSharedVariableBecomesAReference) {
  const Ran ran = Rewrite("__shared__ float a[4][N + 1], b;\nextern __shared__ int all[];\n");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(Read("a.cc"),
              HasSubstr("auto& a = ::sluice::cuda_emulator::Shared<float[4][N + 1]>"));
  EXPECT_THAT(Read("a.cc"), HasSubstr("auto& b = ::sluice::cuda_emulator::Shared<float>"));
  EXPECT_THAT(Read("a.cc"), HasSubstr("int* const all = "));
}

TEST_F(ScriptsTest, CommentsAndStringsAreLeftAlone) {
  const Ran ran =
      Rewrite("// k<<<1, 2>>>(x) and __shared__ int a;\nauto s = \"k<<<1, 2>>>(x)\";\n");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(Read("a.cc"), Not(HasSubstr("Launch(")));
  EXPECT_THAT(Read("a.cc"), HasSubstr("auto s = \"k<<<1, 2>>>(x)\";"));
}

TEST_F(ScriptsTest, UnknownPtxIsAnErrorThatNamesItsLine) {
  const Ran ran = Rewrite("\n\nasm volatile(\"bar.sync 1;\" ::);\n");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("a.cu:3: the emulator does not know the PTX 'bar.sync 1;'"));
}

TEST_F(ScriptsTest, SharedMemoryThatIsNotReadIsAnError) {
  const Ran ran = Rewrite("__shared__ float a = 1;\n");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("a.cu:1:"));
}

TEST_F(ScriptsTest, AKernelWithoutACheckIsAnError) {
  Write("kernels/new/op.cu", "");
  std::filesystem::create_directories(tree_ + "/tools");
  std::filesystem::copy_file(SLUICE_SOURCE_DIR "/tools/gpu_check.py",
                             tree_ + "/tools/gpu_check.py");
  const std::string check =
      "python3 '" + tree_ + "/tools/gpu_check.py' --emulate --build '" + tree_ + "/build'";
  const Ran ran = RunCommand(check);

  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("there is no tests/kernels/new/cuda_check.cu"));

  Write("tests/kernels/new/cuda_check.cu", "");
  Write("common/stray.cu", "");
  EXPECT_THAT(RunCommand(check).output, HasSubstr("common/stray.cu is run by no program"));
}

// Simulates a tree with one kernel, on a machine with a GPU whose tools are shell scripts. The
// program that its nvcc links prints the output of a check program.
class GpuMachineTest : public ScriptsTest {
 protected:
  void SetUp() override {
    ScriptsTest::SetUp();
    for (const char* source :
         {"kernels/new/op.cu", "kernels/new/op_cpu.cc", "tests/kernels/new/cuda_check.cu",
          "tests/kernels/cuda/cuda_check.cu", "tests/kernels/cuda/check_main.cu"})
      Write(source, "");
    std::filesystem::create_directories(tree_ + "/tools");
    std::filesystem::copy_file(SLUICE_SOURCE_DIR "/tools/gpu_check.py",
                               tree_ + "/tools/gpu_check.py");
    WriteTool("nvidia-smi", "echo '9.0, 580.1'");
    WriteTool("compute-sanitizer", "shift 4; exec \"$@\"");
    WriteTool("nvcc", R"sh(
case "$*" in *--version*) echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit;; esac
for out; do :; done
case "$*" in *" -c "*) : >"$out"; exit;; esac
cp "$(dirname "$0")/program" "$out")sh");
    WriteTool("program", R"sh(
case $0 in *card) speed=1000;; *) speed=250;; esac
case "$*" in
  *--bench*)
    for name in copy fma; do
      echo '{"bench": "'$name'", "microseconds": 1, "gb_per_s": '$speed', "gflop_per_s": 10}'
    done;;
  *) echo '{"case": "Works", "passed": true, "seconds": 0}';;
esac)sh");
  }
  void WriteTool(const std::string& name, const std::string& script) {
    Write("bin/" + name, "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(tree_ + "/bin/" + name, std::filesystem::perms::owner_all);
  }
  Ran Check(const std::string& arguments) {
    return RunCommand("PATH='" + tree_ + "/bin':$PATH python3 '" + tree_ +
                      "/tools/gpu_check.py' --build '" + tree_ + "/build' " + arguments);
  }
};

TEST_F(GpuMachineTest, IsCheckedMeasuredAndCheckedAgainByEachTool) {
  const Ran ran = Check("");
  EXPECT_EQ(ran.code, 0) << ran.output;

  const std::string json = Read("build/gpu_check.json");
  EXPECT_THAT(json, HasSubstr("\"form\": \"gpu\",\n \"passed\": true"));
  EXPECT_THAT(json, HasSubstr("\"of_copy\": 0.25"));
  EXPECT_THAT(json, HasSubstr("\"of_fma\": 1.0"));

  for (const char* step : {"check: new", "measure: new", "memcheck: new", "racecheck: new",
                           "initcheck: new", "synccheck: new"})
    EXPECT_THAT(json,
                HasSubstr("\"step\": \"" + std::string(step) + "\",\n   \"status\": \"passed\""));
}

TEST_F(GpuMachineTest, ACaseThatFailsFailsTheRunAndIsToldWhy) {
  WriteTool("program", "echo 'op.cu:3: not true'; exit 1");
  const Ran ran = Check("");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("op.cu:3: not true"));
  EXPECT_THAT(Read("build/gpu_check.json"), HasSubstr("\"passed\": false"));
}

TEST_F(GpuMachineTest, AProgramThatHangsIsEndedAtTheDeadline) {
  WriteTool("program", "sleep 1000");
  const Ran ran = Check("--seconds 4");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("out of time"));
}

TEST_F(GpuMachineTest, AMachineThatKeepsComputeSanitizerOutIsSkippedAloud) {
  WriteTool("compute-sanitizer", "echo 'Error: Device not supported'; exit 1");
  const Ran ran = Check("");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("Device not supported"));
  EXPECT_THAT(Read("build/gpu_check.json"), HasSubstr("\"status\": \"skipped\""));
}

}  // namespace
}  // namespace sluice
