#pragma once

#include "absl/status/status.h"

namespace sluice {

// Whether a stream to the queue that ended with `status` should be opened again.
// OK: the server ended it, as it does when it drains.
// RESOURCE_EXHAUSTED: the queue's disk is full for now.
// CANCELLED and UNKNOWN: the connection was cut at a bad moment.
inline bool IsRetryable(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown: return true;
    default: return false;
  }
}

}  // namespace sluice
