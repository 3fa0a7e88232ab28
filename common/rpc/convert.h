#pragma once

#include "absl/time/time.h"
#include "common/rl/version.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "sluice/common/v1/common.pb.h"

// Converts times and policy versions to and from their protobuf messages.
namespace sluice::rpc {

google::protobuf::Duration ToProto(absl::Duration duration);
absl::Duration FromProto(const google::protobuf::Duration& duration);
google::protobuf::Timestamp ToProto(absl::Time time);
absl::Time FromProto(const google::protobuf::Timestamp& time);

common::v1::PolicyVersion ToProto(const PolicyVersion& version);
PolicyVersion FromProto(const common::v1::PolicyVersion& version);
common::v1::VersionRun ToProto(const VersionRun& run);
VersionRun FromProto(const common::v1::VersionRun& run);

}  // namespace sluice::rpc
