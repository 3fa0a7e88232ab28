// Runs a fuzz target without a fuzzer:
//   TARGET [--mutations N] [--write-seeds DIRECTORY] [FILE|DIRECTORY]..
// Runs each file and each seed, followed by N mutations of it (100 by default), which are always
// the same. If an input ends the process, it is left in ./crash-input.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {

// Returns `input` with a few changes: flipped bits, overwritten bytes, and stretches that are cut,
// repeated or moved.
std::string Mutate(std::string input, SplitMix64* random) {
  for (uint64_t n = 1 + random->Below(4); n > 0 && !input.empty(); --n) {
    const size_t at = random->Below(input.size()),
                 size = 1 + random->Below(std::min<size_t>(input.size() - at, 64));
    switch (random->Below(6)) {
      case 0: input[at] ^= static_cast<char>(1 << random->Below(8)); break;
      case 1: input[at] = static_cast<char>(random->Below(3) == 0 ? 0xff : random->Next()); break;
      case 2: input.erase(at, size); break;
      case 3: input.insert(random->Below(input.size()), input.substr(at, size)); break;
      case 4: input.resize(at); break;
      case 5: {
        const std::string stretch = input.substr(at, size);
        input.replace(random->Below(input.size()), size, stretch);
        break;
      }
    }
  }

  return input;
}

absl::string_view current_input;

void KeepInput(int signal) {
  const int file = open("crash-input", O_CREAT | O_WRONLY | O_TRUNC, 0644);
  const bool kept = write(file, current_input.data(), current_input.size()) ==
                    static_cast<ssize_t>(current_input.size());
  constexpr char kText[] = "the input is in ./crash-input\n";
  if (kept) (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void RunInput(absl::string_view input) {
  current_input = input;
  Run(input);
}

int WriteSeeds(const std::string& directory) {
  SLUICE_CHECK(MakeDirs(directory).ok());
  int number = 0;
  for (const std::string& seed : Seeds())
    SLUICE_CHECK(WriteFileAtomic(absl::StrCat(directory, "/seed-", number++), seed).ok());
  std::fprintf(stderr, "%d seeds in %s\n", number, directory.c_str());
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Runs a fuzz target on its seeds and on files, each followed by mutations of it. It starts "
      "no fuzzer.");
  uint64_t mutations = 100;
  std::string seeds;
  std::vector<std::string> paths;
  app.add_option("PATHS", paths,
                 "files, or directories of them; those that do not exist are left out");
  app.add_option("--mutations", mutations,
                 "number of mutations of each input, the same in each run")
      ->capture_default_str();
  app.add_option("--write-seeds", seeds, "write the seeds to this directory, and run nothing");
  CLI11_PARSE(app, argc, argv);
  if (!seeds.empty()) return WriteSeeds(seeds);

  std::vector<std::pair<std::string, std::string>> inputs;
  const auto add = [&inputs](const std::string& path) {
    absl::StatusOr<std::string> bytes = ReadFile(path);
    SLUICE_CHECK_MSG(bytes.ok(), bytes.status().ToString());
    inputs.emplace_back(path, *std::move(bytes));
  };

  for (const std::string& path : paths) {
    if (const auto names = ListDir(path); names.ok()) {
      for (const std::string& name : *names) add(absl::StrCat(path, "/", name));
    } else if (PathExists(path)) {
      add(path);
    }
  }

  for (const std::string& seed : Seeds())
    inputs.emplace_back(absl::StrCat("seed ", inputs.size()), seed);
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE}) std::signal(signal, KeepInput);
  uint64_t runs = 0;

  for (const auto& [name, input] : inputs) {
    std::fprintf(stderr, "%s, %zu bytes\n", name.c_str(), input.size());
    RunInput(input);
    SplitMix64 random(runs++);
    for (uint64_t i = 0; i < mutations; ++i, ++runs) RunInput(Mutate(input, &random));
  }

  std::fprintf(stderr, "%llu inputs\n", static_cast<unsigned long long>(runs));
  return 0;
}
}  // namespace
}  // namespace sluice::fuzz

int main(int argc, char** argv) { return sluice::fuzz::Main(argc, argv); }
