#include "tools/sluice/exit_code.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/error_catalogue.h"
#include "common/base/status.h"

namespace sluice::cli {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return kDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented: return kMisuse;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return kNotAllowed;
    case absl::StatusCode::kNotFound: return kNotFound;
    case absl::StatusCode::kDeadlineExceeded: return kTimeout;
    case absl::StatusCode::kUnavailable: return kUnreachable;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition: return kConflict;
    case absl::StatusCode::kCancelled: return kInterrupted;
    default: return kFailed;
  }
}

ExitCode Complain(const absl::Status& status) {
  if (ReasonOf(status) == "BAD_CONFIG") {  // Each line names its file and code.
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return kMisuse;
  }
  const ErrorDetail detail = DetailOf(status);
  std::fprintf(stderr, "error%s%s: %s\n", detail.catalogue.empty() ? "" : " ",
               detail.catalogue.c_str(), std::string(status.message()).c_str());
  std::string hint = detail.hint;
  if (hint.empty() && status.code() == absl::StatusCode::kUnavailable) {
    hint =
        "is a controller running there? `sluice dev up` starts one, --server HOST:PORT names "
        "another";
  }
  if (!hint.empty()) std::fprintf(stderr, "hint: %s\n", hint.c_str());
  if (FindError(detail.catalogue) != nullptr)
    std::fprintf(stderr, "more: sluice explain %s\n", detail.catalogue.c_str());
  return ExitCodeOf(status);
}

}  // namespace sluice::cli
