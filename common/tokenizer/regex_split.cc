#include "common/tokenizer/regex_split.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {
namespace {

constexpr size_t kMaxPattern = 4096;
constexpr uint32_t kMatchLimit = 10'000'000, kDepthLimit = 100'000, kHeapLimitKib = 65'536;

// White_Space of Unicode, which is what \s means to the reference library; PCRE2's own \s also matches U+180E.
constexpr char kSpace[] = R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Writes \s and \S out, inside and outside of classes. \S inside a class has no such form and is kept.
std::string ExpandSpaces(absl::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        absl::StrAppend(&out, in_class ? "" : "[", kSpace, in_class ? "" : "]");
      } else if (escaped == 'S' && !in_class) {
        absl::StrAppend(&out, "[^", kSpace, "]");
      } else {
        out += {c, escaped};
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out.push_back(c);
  }
  return out;
}

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

struct RegexSplit::Impl {
  std::unique_ptr<pcre2_code, CodeDeleter> code;
  std::unique_ptr<pcre2_match_context, ContextDeleter> limits;
};

RegexSplit::RegexSplit(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RegexSplit::~RegexSplit() = default;
RegexSplit::RegexSplit(RegexSplit&&) noexcept = default;
RegexSplit& RegexSplit::operator=(RegexSplit&&) noexcept = default;

absl::StatusOr<RegexSplit> RegexSplit::Compile(absl::string_view pattern) {
  if (pattern.size() > kMaxPattern) {
    return absl::InvalidArgumentError(absl::StrCat("a pattern of ", pattern.size(), " bytes; the limit is ", kMaxPattern));
  }
  const std::string expanded = ExpandSpaces(pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(), PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr));
  if (impl->code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return absl::InvalidArgumentError(absl::StrCat("pattern at byte ", at, ": ", reinterpret_cast<const char*>(message)));
  }
  pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);  // Where there is no JIT, matching is interpreted.
  impl->limits.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(impl->limits.get(), kMatchLimit);
  pcre2_set_depth_limit(impl->limits.get(), kDepthLimit);
  pcre2_set_heap_limit(impl->limits.get(), kHeapLimitKib);
  return RegexSplit(std::move(impl));
}

absl::Status RegexSplit::Split(absl::string_view text, std::vector<absl::string_view>* pieces) const {
  const std::unique_ptr<pcre2_match_data, MatchDeleter> match(pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  size_t done = 0, from = 0;
  while (from < text.size()) {
    const int rc = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, 0, match.get(), impl_->limits.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      PCRE2_UCHAR message[256] = {};
      pcre2_get_error_message(rc, message, sizeof message);
      return absl::ResourceExhaustedError(absl::StrCat("split pattern at byte ", from, " of ", text.size(), ": ", reinterpret_cast<const char*>(message)));
    }
    const PCRE2_SIZE* const span = pcre2_get_ovector_pointer(match.get());
    if (span[1] == span[0]) {  // An empty match cuts nothing.
      ++from;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    if (span[0] > done) pieces->push_back(text.substr(done, span[0] - done));
    pieces->push_back(text.substr(span[0], span[1] - span[0]));
    done = from = span[1];
  }
  if (done < text.size()) pieces->push_back(text.substr(done));
  return absl::OkStatus();
}

}  // namespace sluice
