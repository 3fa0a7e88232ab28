#include "common/rpc/convert.h"

namespace sluice::rpc {

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  absl::Duration rest;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return proto;
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp proto;
  const int64_t seconds = absl::ToUnixSeconds(time);  // Rounds down, so nanos are never negative.
  proto.set_seconds(seconds);
  proto.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
  return proto;
}

absl::Time FromProto(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

common::v1::PolicyVersion ToProto(const PolicyVersion& version) {
  common::v1::PolicyVersion proto;
  proto.set_incarnation(version.incarnation);
  proto.set_number(version.number);
  return proto;
}

PolicyVersion FromProto(const common::v1::PolicyVersion& version) {
  return {version.incarnation(), version.number()};
}

common::v1::VersionRun ToProto(const VersionRun& run) {
  common::v1::VersionRun proto;
  proto.set_policy(run.policy);
  *proto.mutable_version() = ToProto(run.version);
  proto.set_count(run.count);
  return proto;
}

VersionRun FromProto(const common::v1::VersionRun& run) {
  return {.version = FromProto(run.version()), .count = run.count(), .policy = run.policy()};
}

}  // namespace sluice::rpc
