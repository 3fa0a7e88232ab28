#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/pattern.h"

namespace sluice {

// Translates a pattern of the reference library's engine (Oniguruma, Ruby syntax, with its Unicode
// version) to one with the same meaning in PCRE2: \s, \w, \b, \h and categories are written out.
// UNIMPLEMENTED: a construct has another meaning in PCRE2 and cannot be translated; the message
// gives its name and byte offset.
absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern);

// A regular expression, run by PCRE2 (UTF, UCP, JIT).
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
