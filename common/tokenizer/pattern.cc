#include "common/tokenizer/pattern.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/tokenizer/char_class.h"
#include "common/tokenizer/regex.h"

namespace sluice {
namespace {

class StringPattern : public Pattern {
 public:
  explicit StringPattern(std::string text) : text_(std::move(text)) {}
  absl::Status Find(absl::string_view text, std::vector<Span>* matches) const override {
    for (size_t at = text.find(text_); at != absl::string_view::npos;
         at = text.find(text_, at + text_.size()))
      matches->push_back({at, at + text_.size()});
    return absl::OkStatus();
  }

 private:
  const std::string text_;
};

class ScannerPattern : public Pattern {
 public:
  explicit ScannerPattern(Scanner scanner) : scanner_(scanner) {}
  absl::Status Find(absl::string_view text, std::vector<Span>* matches) const override {
    for (size_t at = 0; at < text.size();) {
      const Scanned piece = scanner_(text, at);
      if (piece.match) matches->push_back({at, piece.end});
      at = piece.end;
    }
    return absl::OkStatus();
  }
  Scanner scanner() const override { return scanner_; }
  bool matches_everywhere() const override { return MatchesEverywhere(scanner_); }

 private:
  const Scanner scanner_;
};

class DigitPattern : public Pattern {
 public:
  absl::Status Find(absl::string_view text, std::vector<Span>* matches) const override {
    const CharTable& table = CharTable::Get();
    for (size_t at = 0, length = 0; at < text.size(); at += length) {
      length = Utf8SequenceLength(text[at]);
      if (table.Mask(DecodeUtf8(&text[at])) == kNumberMask) matches->push_back({at, at + length});
    }
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<const Pattern> Pattern::Digit() { return std::make_unique<DigitPattern>(); }
std::unique_ptr<const Pattern> Pattern::String(std::string text) {
  return std::make_unique<StringPattern>(std::move(text));
}

absl::StatusOr<std::unique_ptr<const Pattern>> Pattern::Regex(absl::string_view regex) {
  if (const Scanner scanner = ScannerFor(regex)) return std::make_unique<ScannerPattern>(scanner);
  return RegexPattern::Compile(regex);
}

absl::StatusOr<std::unique_ptr<const Pattern>> Pattern::Parse(const Component& component) {
  SLUICE_ASSIGN_OR_RETURN(const Component pattern, component.Object("pattern"));
  SLUICE_RETURN_IF_ERROR(pattern.CheckKeys({"String", "Regex"}));
  if (pattern.Has("String") == pattern.Has("Regex"))
    return pattern.Invalid("it must have either String or Regex");
  if (pattern.Has("String")) {
    SLUICE_ASSIGN_OR_RETURN(std::string text, pattern.String("String"));
    if (text.empty()) return pattern.Invalid("String is empty");
    return String(std::move(text));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text, pattern.String("Regex"));
  auto regex = Regex(text);
  if (!regex.ok()) return Annotate(regex.status(), absl::StrCat(pattern.path(), ".Regex"));
  return regex;
}

absl::StatusOr<std::string> Pattern::Replace(absl::string_view text,
                                             absl::string_view content) const {
  std::vector<Span> matches;
  SLUICE_RETURN_IF_ERROR(Find(text, &matches));
  std::string out;
  size_t done = 0;
  for (const Span& match : matches) {
    absl::StrAppend(&out, text.substr(done, match.begin - done), content);
    done = match.end;
  }
  absl::StrAppend(&out, text.substr(done));
  return out;
}

}  // namespace sluice
