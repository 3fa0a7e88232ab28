#include "tests/deploy/readme.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/deploy/command.h"

namespace sluice::deploy {

absl::StatusOr<std::vector<std::string>> ReadBlocks(absl::string_view heading) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadFile(std::string(SLUICE_SOURCE_DIR) + "/deploy/README.md"));
  std::vector<std::string> blocks;
  bool below = false, code = false;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, "```")) {
      code = !code;
      if (below && code) blocks.emplace_back();
    } else if (!code && absl::StartsWith(line, "## ")) {
      below = line.substr(3) == heading;
    } else if (below && code) {
      absl::StrAppend(&blocks.back(), line, "\n");
    }
  }
  if (!blocks.empty()) return blocks;
  return absl::NotFoundError(
      absl::StrCat("deploy/README.md has no block of code below the heading ", heading));
}

absl::StatusOr<std::string> ReadFirstSteps() {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> blocks, ReadBlocks("First steps"));
  std::string found;
  for (const std::string& block : blocks) {
    if (!absl::StrContains(block, "kubectl apply")) continue;
    if (!found.empty()) return absl::NotFoundError("two blocks of First steps apply something");
    found = block;
  }
  if (!found.empty()) return found;
  return absl::NotFoundError("no block of First steps applies anything");
}

absl::StatusOr<std::string> RunBlock(const std::string& block, const std::string& deploy,
                                     const std::string& home, const std::string& programs) {
  const std::string path =
      absl::StrCat(programs, programs.empty() ? "" : ":", SLUICE_BIN_DIR, ":", std::getenv("PATH"));
  return RunCommand({"bash", "-euo", "pipefail", "-c", "cd \"$0\"\n" + block, deploy + "/.."},
                    {{"HOME", home}, {"PATH", path}}, absl::Minutes(5));
}

}  // namespace sluice::deploy
