#include "common/tokenizer/regex.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {
namespace {

constexpr size_t kMaxPattern = 4096;
constexpr uint32_t kMatchLimit = 10'000'000, kDepthLimit = 100'000, kHeapLimitKib = 65'536;
// As in Ruby, ^ and $ match at the ends of lines, and only \n ends a line.
constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK;

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* p) const { kFree(p); }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code, pcre2_code_free>>;
using Match = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data, pcre2_match_data_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Free<pcre2_match_context, pcre2_match_context_free>>;
using CompileContext =
    std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context, pcre2_compile_context_free>>;

std::string ErrorMessage(int code) {
  PCRE2_UCHAR message[256] = {};
  pcre2_get_error_message(code, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

}  // namespace

struct RegexPattern::Impl {
  Code code;
  MatchContext limits;
};

RegexPattern::RegexPattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RegexPattern::~RegexPattern() = default;

absl::StatusOr<std::unique_ptr<const Pattern>> RegexPattern::Compile(absl::string_view pattern) {
  if (pattern.size() > kMaxPattern)
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern has ", pattern.size(), " bytes; the limit is ", kMaxPattern));
  if (!IsUtf8(pattern)) return absl::InvalidArgumentError("the pattern is not UTF-8");
  SLUICE_ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));

  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 kOptions, &error, &at, context.get()));
  if (impl->code == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern is not valid: ", ErrorMessage(error)));

  // Without JIT support, PCRE2 interprets the pattern.
  pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  impl->limits.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(impl->limits.get(), kMatchLimit);
  pcre2_set_depth_limit(impl->limits.get(), kDepthLimit);
  pcre2_set_heap_limit(impl->limits.get(), kHeapLimitKib);
  return std::unique_ptr<const Pattern>(new RegexPattern(std::move(impl)));
}

absl::Status RegexPattern::Find(absl::string_view text, std::vector<Span>* matches) const {
  const Match match(pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  size_t from = 0, last_end = absl::string_view::npos;
  while (from <= text.size()) {
    const int rc =
        pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                    PCRE2_NO_UTF_CHECK, match.get(), impl_->limits.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0)
      return absl::ResourceExhaustedError(absl::StrCat("the pattern failed at byte ", from,
                                                       " of a text of ", text.size(),
                                                       " bytes: ", ErrorMessage(rc)));
    const PCRE2_SIZE* const span = pcre2_get_ovector_pointer(match.get());
    // Only \K in a lookahead could do this, and TranslateRegex() refuses \K.
    if (span[0] > span[1])
      return absl::InternalError("a match of the pattern ends before it begins");
    // An empty match directly after another match does not count. Go on one character later.
    if (span[0] == span[1] && span[1] == last_end) {
      ++from;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    matches->push_back({span[0], span[1]});
    from = last_end = span[1];
  }
  return absl::OkStatus();
}

}  // namespace sluice
