#pragma once

#include "absl/status/status.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace sluice::rpc {

// An error on the wire: the code is the same number; the ErrorDetail of common/base/status.h
// travels as google.rpc.ErrorInfo {reason, domain "sluice", metadata {catalogue, hint, current}}
// and RetryInfo in `grpc-status-details-bin`, so that clients of any language read it.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The way back. Details that cannot be read, or are of another domain, are left out; code and
// message stay.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace sluice::rpc
