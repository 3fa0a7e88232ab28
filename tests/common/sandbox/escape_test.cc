#include <string>

#include "absl/strings/str_cat.h"
#include "tests/common/sandbox/probes.h"
#include "tests/common/sandbox/tiers.h"

namespace sluice::sandbox {
namespace {

class EscapeTest : public ::testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
#ifndef __x86_64__
    GTEST_SKIP() << "the probes know the system calls of x86-64";
#endif
    absl::StatusOr<std::unique_ptr<Launcher>> made = MakeLauncher(GetParam());
    if (!made.ok()) GTEST_SKIP() << made.status();
    launcher_ = *std::move(made);
    folder_ = MakeFolder();
    file_ = absl::StrCat(folder_, "/file");
    WriteFile(file_, "of the host");
    setenv("SLUICE_TEST_SECRET", "secret", 1);
  }

  std::unique_ptr<Launcher> launcher_;
  std::string folder_, file_;
};

TEST_P(EscapeTest, EveryProbeIsRefused) {
  ASSERT_GE(Probes().size(), 60u);
  EXPECT_THAT(FindEscapes(launcher_.get(), file_, getpid()), ::testing::IsEmpty());
}

// The probes are worth something only if they notice an escape.
TEST_P(EscapeTest, WithoutASandboxTheProbesOfFilesAndSocketsEscape) {
  for (const Probe& probe : Probes()) {
    const absl::string_view name = probe.name;
    if (name != "IPv4" && name != "UnixSocket" && name != "HostFile" && name != "SharedMemory" &&
        name != "SignalHostProcess" && name != "MemfdExec" && name != "OwnEnvironment")
      continue;
    const std::string path = absl::StrCat(folder_, "/probe.py");
    WriteFile(path, CodeOf(probe, file_, getpid()));
    FILE* const ran = popen(absl::StrCat("/usr/bin/python3 ", path).c_str(), "r");
    ASSERT_NE(ran, nullptr);
    const std::string out = ReadAll(fileno(ran));
    pclose(ran);
    EXPECT_THAT(out, ::testing::HasSubstr("ESCAPED")) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, EscapeTest, ::testing::ValuesIn(kTiers), TierName);

}  // namespace
}  // namespace sluice::sandbox
