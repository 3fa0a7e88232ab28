#include "tests/deploy/golden.h"

#include <cstdlib>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"

namespace sluice::deploy {
namespace {

std::set<std::string> LinesOf(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

// Without the hash that ends the name of a generated ConfigMap: each kustomize makes its own.
std::string HideHashes(const std::string& text) {
  static const std::regex kHash("-[bcdfghkmt2456789]{10}\\b");
  return std::regex_replace(text, kHash, "-HASH");
}

}  // namespace

std::string CompareWithGolden(const std::string& name, const Manifest& manifest) {
  const std::string path = absl::StrCat(SLUICE_SOURCE_DIR, "/tests/golden/deploy/", name, ".txt");
  const std::string now = HideHashes(Describe(manifest));
  if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
    const absl::Status written = WriteFileAtomic(path, now);
    return written.ok() ? "" : written.ToString();
  }

  const absl::StatusOr<std::string> golden = ReadFile(path);
  if (!golden.ok()) return golden.status().ToString();
  const std::set<std::string> before = LinesOf(*golden), after = LinesOf(now);
  std::string difference;
  for (const std::string& line : before)
    if (!after.contains(line)) absl::StrAppend(&difference, "- ", line, "\n");
  for (const std::string& line : after)
    if (!before.contains(line)) absl::StrAppend(&difference, "+ ", line, "\n");
  if (difference.empty()) return "";
  return absl::StrCat(difference, "If the change is meant:\n  SLUICE_UPDATE_GOLDEN=1 ",
                      SLUICE_BIN_DIR, "/deploy_test --gtest_filter='*Unnoticed*'");
}

}  // namespace sluice::deploy
