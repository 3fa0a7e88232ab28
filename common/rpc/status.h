#pragma once

#include "absl/status/status.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace sluice::rpc {

// Converts a status for the wire. Both libraries use the same numbers for codes. The ErrorDetail of
// common/base/status.h travels in `grpc-status-details-bin`, as google.rpc.ErrorInfo {reason,
// domain "sluice", metadata {catalogue, hint, current}} and RetryInfo, so that clients in any
// language can read it. Text is made valid UTF-8 and cut to limits.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The same for an error that gRPC sends without details: catalogue and reason, both of which it
// must have, stand in front of its message.
grpc::Status ToGrpcStatusInText(const absl::Status& status);

// Converts a status from the wire, with or without details. Details that cannot be parsed, or that
// have another domain, are left out; code and message are kept.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace sluice::rpc
