#include "common/base/trace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/id.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr size_t kTraceIdDigits = 32;
constexpr size_t kParentIdDigits = 16;
constexpr size_t kHeaderLength = 2 + 1 + kTraceIdDigits + 1 + kParentIdDigits + 1 + 2;
// Longest header of a later version that is read.
constexpr size_t kLongestHeader = 256;

// The innermost scope's trace of this thread.
thread_local const Trace* scope_trace = nullptr;

Trace& ProcessTrace() {
  // Never destroyed, because threads may log while the process ends.
  static Trace* const trace = new Trace;
  return *trace;
}

bool IsLowerHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsAllZeros(absl::string_view text) { return text.find_first_not_of('0') == text.npos; }

// Random lower-case hex digits, at most 32 of them, which are not all zeros.
std::string RandomHex(size_t digits) {
  while (true) {
    std::string hex = ToHex(RandomId16()).substr(0, digits);
    if (!IsAllZeros(hex)) return hex;
  }
}

}  // namespace

Trace MakeTrace() { return {.id = RandomHex(kTraceIdDigits)}; }

std::string FormatTraceparent(const Trace& trace) {
  SLUICE_CHECK(!trace.empty());
  return absl::StrCat("00-", trace.id, "-", RandomHex(kParentIdDigits),
                      trace.sampled ? "-01" : "-00");
}

std::optional<Trace> ParseTraceparent(absl::string_view header) {
  if (header.size() < kHeaderLength || header.size() > kLongestHeader) return std::nullopt;
  const absl::string_view version = header.substr(0, 2), trace = header.substr(3, kTraceIdDigits),
                          parent = header.substr(36, kParentIdDigits), flags = header.substr(53, 2);
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  for (const absl::string_view part : {version, trace, parent, flags}) {
    if (!IsLowerHex(part)) return std::nullopt;
  }
  if (version == "ff" || IsAllZeros(trace) || IsAllZeros(parent)) return std::nullopt;

  // A later version may add fields, each after a dash.
  if (header.size() > kHeaderLength && (version == "00" || header[kHeaderLength] != '-'))
    return std::nullopt;

  // The flag is the lowest bit, and so that of the last digit.
  const char digit = flags[1];
  const int bits = digit <= '9' ? digit - '0' : digit - 'a' + 10;
  return Trace{.id = std::string(trace), .sampled = bits % 2 == 1};
}

const Trace& CurrentTrace() { return scope_trace != nullptr ? *scope_trace : ProcessTrace(); }

void SetProcessTrace(Trace trace) { ProcessTrace() = std::move(trace); }

TraceScope::TraceScope(const Trace& trace) : trace_(trace), outer_(scope_trace) {
  if (!trace_.empty()) scope_trace = &trace_;
}

TraceScope::~TraceScope() { scope_trace = outer_; }

}  // namespace sluice
