#include "common/verifiers/format.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/verifiers/args.h"

namespace sluice {
namespace {

constexpr size_t kMaxTags = 16;

size_t CountOf(absl::string_view text, absl::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != absl::string_view::npos;
       at = text.find(part, at + part.size()))
    ++count;
  return count;
}

bool IsBlank(absl::string_view text) { return absl::StripAsciiWhitespace(text).empty(); }

class Format : public Verifier {
 public:
  Format(std::vector<std::string> tags, bool strict) : tags_(std::move(tags)), strict_(strict) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json&) const override {
    absl::string_view rest = answer.text;
    for (const std::string& tag : tags_) {
      const std::string open = absl::StrCat("<", tag, ">"), close = absl::StrCat("</", tag, ">");
      if (CountOf(answer.text, open) != 1 || CountOf(answer.text, close) != 1)
        return Verdict{.reason = absl::StrCat("not_once:", tag)};
      const size_t begin = rest.find(open), end = rest.find(close);
      if (begin == absl::string_view::npos || end == absl::string_view::npos || end < begin)
        return Verdict{.reason = absl::StrCat("out_of_order:", tag)};
      if (strict_ && !IsBlank(rest.substr(0, begin))) return Verdict{.reason = "text_outside"};
      const size_t first = begin + open.size();
      if (IsBlank(rest.substr(first, end - first)))
        return Verdict{.reason = absl::StrCat("blank:", tag)};
      rest.remove_prefix(end + close.size());
    }
    if (strict_ && !IsBlank(rest)) return Verdict{.reason = "text_outside"};
    return Verdict{.score = 1, .reason = "right"};
  }
  absl::Status CheckRow(const nlohmann::json&) const override { return absl::OkStatus(); }

 private:
  const std::vector<std::string> tags_;
  const bool strict_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeFormat(const nlohmann::json& args) {
  ArgReader reader("format", args);
  std::vector<std::string> tags = reader.Strings("tags");
  const bool strict = reader.Bool("strict", false);
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  if (tags.empty() || tags.size() > kMaxTags)
    return absl::InvalidArgumentError(
        absl::StrCat("format: args.tags has ", tags.size(), " names, wanted: 1 to ", kMaxTags));
  for (size_t i = 0; i < tags.size(); ++i) {
    bool plain = !tags[i].empty();
    for (const char c : tags[i])
      plain &= absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
    if (!plain)
      return absl::InvalidArgumentError(
          absl::StrCat("format: args.tags has \"", tags[i],
                       "\", wanted: a name of letters, digits, _ and -, without < and >"));
    for (size_t j = 0; j < i; ++j) {
      if (tags[i] == tags[j])
        return absl::InvalidArgumentError(
            absl::StrCat("format: args.tags names \"", tags[i], "\" twice"));
    }
  }
  return std::make_unique<Format>(std::move(tags), strict);
}

}  // namespace sluice
