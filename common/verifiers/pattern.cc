#include "common/verifiers/pattern.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr size_t kMaxPattern = 4096;
constexpr int64_t kMaxPatternMemory = 1 << 20;

// Instructions times bytes: RE2 does about 10^9 of them a second when it falls back from its DFA.
constexpr double kMaxWork = 5e7;

}  // namespace

bool IsCheap(const RE2& pattern, absl::string_view text) {
  return static_cast<double>(pattern.ProgramSize()) * static_cast<double>(text.size()) <= kMaxWork;
}

absl::StatusOr<std::unique_ptr<RE2>> CompilePattern(const std::string& text) {
  if (text.empty() || text.size() > kMaxPattern) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern has ", text.size(), " bytes, wanted: 1 to ", kMaxPattern));
  }
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMaxPatternMemory);
  auto pattern = std::make_unique<RE2>(text, options);
  if (!pattern->ok())
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no pattern: ", pattern->error()));
  return pattern;
}

}  // namespace sluice
