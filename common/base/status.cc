#include "common/base/status.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {
// The detail is one payload of the absl::Status: its five parts as text, joined by kSeparator.
constexpr char kPayload[] = "sluice.error";
constexpr char kSeparator = '\x1f';
}  // namespace

absl::Status Error(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  return ErrorWith(code, {.reason = std::string(reason)}, message);
}

absl::Status ErrorWith(absl::StatusCode code, ErrorDetail detail, absl::string_view message) {
  // A hint may quote a file or a peer, and so hold any byte. A separator in it would shift the
  // parts behind it. `current` is the last part and may hold one.
  for (std::string* part : {&detail.reason, &detail.catalogue, &detail.hint})
    std::replace(part->begin(), part->end(), kSeparator, ' ');

  absl::Status status(code, message);
  status.SetPayload(kPayload,
                    absl::Cord(absl::StrCat(
                        detail.reason, "\x1f", detail.catalogue, "\x1f", detail.hint, "\x1f",
                        absl::ToInt64Nanoseconds(detail.retry_after), "\x1f", detail.current)));
  return status;
}

ErrorDetail DetailOf(const absl::Status& status) {
  ErrorDetail detail;
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return detail;

  const std::string text(*payload);
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(kSeparator, 4));
  SLUICE_CHECK(parts.size() == 5);
  int64_t nanoseconds = 0;
  SLUICE_CHECK(absl::SimpleAtoi(parts[3], &nanoseconds));
  return {.reason = parts[0],
          .catalogue = parts[1],
          .hint = parts[2],
          .retry_after = absl::Nanoseconds(nanoseconds),
          .current = parts[4]};
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  if (auto payload = status.GetPayload(kPayload); payload.has_value())
    annotated.SetPayload(kPayload, *payload);
  return annotated;
}

namespace internal {
void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s %s\n", file, line, condition, message.c_str());
  std::abort();
}
}  // namespace internal
}  // namespace sluice
