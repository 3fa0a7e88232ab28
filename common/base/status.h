#pragma once

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

// What an error carries besides its code and message. It is stored in the absl::Status and travels
// over the wire as google.rpc.ErrorInfo and RetryInfo (common/rpc/status.h).
struct ErrorDetail {
  std::string reason;  // One word in upper case: NOT_YET, FENCED, LEASE_LOST, ..
  // A fixed number by which people can search for the error, such as SLUICE-QUEUE-0004. Many errors
  // have none, above all those that only another daemon reads; it is empty then.
  std::string catalogue;
  std::string hint;            // What a person should do next.
  absl::Duration retry_after;  // How long the caller should wait. Zero means unset.
  std::string current;         // With LOST_RACE and FENCED: the value that won, as text.

  bool operator==(const ErrorDetail&) const = default;
};

// Makes an error with a reason, such as Error(absl::StatusCode::kAborted, "FENCED", "incarnation 3
// < 4").
absl::Status Error(absl::StatusCode code, absl::string_view reason, absl::string_view message);
// The same with all details. The unit separator (0x1f) in reason, catalogue and hint becomes a
// space.
absl::Status ErrorWith(absl::StatusCode code, ErrorDetail detail, absl::string_view message);

// The detail that an error carries, or an empty one if it carries none.
ErrorDetail DetailOf(const absl::Status& status);
inline std::string ReasonOf(const absl::Status& status) { return DetailOf(status).reason; }

// The same error with "`context`: " in front of its message. Its detail is kept; OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);
}  // namespace internal
}  // namespace sluice

#define SLUICE_CONCAT_INNER(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_INNER(a, b)

// Returns from the function if `expr` is not OK.
#define SLUICE_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

// Assigns the value of `expr` to `lhs`, or returns its error. It expands to several statements, so
// it cannot be the body of an `if` without braces.
#define SLUICE_ASSIGN_OR_RETURN(lhs, expr) \
  SLUICE_ASSIGN_OR_RETURN_IMPL(SLUICE_CONCAT(statusor_, __LINE__), lhs, expr)
#define SLUICE_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  lhs = *std::move(tmp)

// Aborts the process if an invariant is broken, in release builds too.
#define SLUICE_CHECK(condition) SLUICE_CHECK_MSG(condition, "")
#define SLUICE_CHECK_MSG(condition, message)                                                    \
  do {                                                                                          \
    if (!(condition)) ::sluice::internal::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)
