#pragma once

#include <memory>
#include <vector>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Cuts text at the matches of a regular expression: matches and the text between them are pieces, in order.
//
// Immutable, so thread-safe.
class RegexSplit {
 public:
  // INVALID_ARGUMENT: the pattern is longer than 4 KiB or does not compile; the message has the place.
  static absl::StatusOr<RegexSplit> Compile(absl::string_view pattern);
  ~RegexSplit();
  RegexSplit(RegexSplit&&) noexcept;
  RegexSplit& operator=(RegexSplit&&) noexcept;

  // RESOURCE_EXHAUSTED: matching went over its limit of steps, depth or memory.
  absl::Status Split(absl::string_view text, std::vector<absl::string_view>* pieces) const;

 private:
  struct Impl;
  explicit RegexSplit(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
