#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/sandbox/sandbox.h"
#include "common/testing/data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Helpers of tests that run in each tier that this machine has.
namespace sluice::sandbox {

inline constexpr Tier kTiers[] = {Tier::kNamespaces, Tier::kNamespacesAlone, Tier::kLandlock};

inline std::string TierName(const ::testing::TestParamInfo<Tier>& info) {
  switch (info.param) {
    case Tier::kNamespaces: return "Namespaces";
    case Tier::kNamespacesAlone: return "NamespacesAlone";
    case Tier::kLandlock: return "Landlock";
    case Tier::kUnsafe: break;
  }
  return "Unsafe";
}

// A launcher of exactly this tier. FAILED_PRECONDITION: it does not work here; a test skips then.
inline absl::StatusOr<std::unique_ptr<Launcher>> MakeLauncher(Tier tier, uint32_t slots = 1) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Launcher> made,
                          Launcher::Make({.slots = slots, .strongest = tier}));
  if (made->tier() == tier) return made;
  return absl::FailedPreconditionError(made->why_not_stronger());
}

inline std::string ReadAll(int fd) {
  std::string text;
  char piece[4096];
  while (true) {
    const ssize_t got = read(fd, piece, sizeof piece);
    if (got <= 0) return text;
    text.append(piece, static_cast<size_t>(got));
  }
}

// What a program has done. Its output must be short, or it would wait for its reader.
struct Ran {
  int status = -1;  // As waitpid() gives it; -1: it was not started, or did not end in 30 s.
  std::string out, err;
};

inline Ran RunCommand(Launcher* launcher, const Command& command) {
  Ran ran;
  const auto process = launcher->Start(command);
  if (!process.ok()) {
    ran.err = std::string(process.status().message());
    return ran;
  }
  (*process)->CloseIn();
  const auto status = (*process)->Wait(absl::Seconds(30));
  if (status.ok()) ran.status = *status;
  (void)(*process)->Kill();
  ran.out = ReadAll((*process)->out());
  ran.err = ReadAll((*process)->err());
  return ran;
}

inline Ran RunPython(Launcher* launcher, const std::string& code, Command command = {}) {
  command.argv = {"/usr/bin/python3", "-I", "-c", code};
  return RunCommand(launcher, command);
}

// The lock files of the slots that this process holds.
inline std::vector<std::string> HeldLocks() {
  std::vector<std::string> locks;
  const std::vector<std::string> fds = ListDir("/proc/self/fd").value();
  for (const std::string& fd : fds) {
    char target[256];
    const ssize_t length =
        readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof target);
    const std::string path(target, length > 0 ? static_cast<size_t>(length) : 0);
    if (path.find("sluice-sandbox") != std::string::npos && path.rfind(".lock") == path.size() - 5)
      locks.push_back(path);
  }
  return locks;
}

// A new folder that all users can read.
inline std::string MakeFolder() {
  chmod(testing_data::TempPath("").c_str(), 0755);
  const std::string path = testing_data::TempPath(ToHex(RandomId16()));
  EXPECT_EQ(mkdir(path.c_str(), 0755), 0);
  return path;
}

inline void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

}  // namespace sluice::sandbox
