#pragma once

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

// What an error carries beside its code and message. It travels inside the absl::Status, and over
// the wire as google.rpc.ErrorInfo and RetryInfo (common/rpc/status.h).
struct ErrorDetail {
  std::string reason;     // One word, upper case: NOT_YET, FENCED, LEASE_LOST, ..
  std::string catalogue;  // SLUICE-QUEUE-0004; empty where only another daemon reads the error.
  std::string hint;       // What a person does next.
  absl::Duration retry_after;  // Zero: unset.
  std::string current;         // LOST_RACE: the value that won, as text.
};

// An error with its reason, as in Error(absl::StatusCode::kAborted, "FENCED", "incarnation 3 < 4").
absl::Status Error(absl::StatusCode code, absl::string_view reason, absl::string_view message);
absl::Status ErrorWith(absl::StatusCode code, ErrorDetail detail, absl::string_view message);

// The detail an error carries; an empty one if none.
ErrorDetail DetailOf(const absl::Status& status);
inline std::string ReasonOf(const absl::Status& status) { return DetailOf(status).reason; }

// The same error with `context: ` in front of its message and its detail kept.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);
}  // namespace internal
}  // namespace sluice

#define SLUICE_CONCAT_INNER(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_INNER(a, b)

#define SLUICE_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

#define SLUICE_ASSIGN_OR_RETURN(lhs, expr) \
  SLUICE_ASSIGN_OR_RETURN_IMPL(SLUICE_CONCAT(statusor_, __LINE__), lhs, expr)
#define SLUICE_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  lhs = *std::move(tmp)

// A broken invariant ends the process, in release builds too.
#define SLUICE_CHECK(condition) SLUICE_CHECK_MSG(condition, "")
#define SLUICE_CHECK_MSG(condition, message)                                                    \
  do {                                                                                          \
    if (!(condition)) ::sluice::internal::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)
