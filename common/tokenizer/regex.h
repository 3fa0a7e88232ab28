#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/pattern.h"

namespace sluice {

// The pattern as PCRE2 must be given it to mean what it means to the reference library's engine
// (Oniguruma, Ruby syntax, at its Unicode version): \s, \w, \b, \h and categories are written out.
// UNIMPLEMENTED: a construct whose meaning differs and that has no such form, by name and byte
// offset.
absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern);

// A regular expression run by PCRE2 (UTF, UCP, JIT).
class RegexPattern : public Pattern {
 public:
  static absl::StatusOr<std::unique_ptr<const Pattern>> Compile(absl::string_view pattern);
  absl::Status Find(absl::string_view text, std::vector<Span>* matches) const override;
  ~RegexPattern() override;

 private:
  struct Impl;
  explicit RegexPattern(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
