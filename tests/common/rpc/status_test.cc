#include "common/rpc/status.h"

#include <gtest/gtest.h>
#include <grpcpp/support/status.h>

#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "sluice/rpc/v1/error_details.pb.h"

namespace sluice::rpc {
namespace {

TEST(StatusTest, AnErrorCrossesTheWireWithItsDetail) {
  const absl::Status sent = ErrorWith(absl::StatusCode::kAborted,
                                      {.reason = "LOST_RACE",
                                       .catalogue = "SLUICE-QUEUE-0004",
                                       .hint = "read again",
                                       .retry_after = absl::Milliseconds(1250),
                                       .current = "3:12"},
                                      "version 3:11 is not the current one");
  const absl::Status received = FromGrpcStatus(ToGrpcStatus(sent));

  EXPECT_EQ(received.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(received.message(), sent.message());
  const ErrorDetail detail = DetailOf(received);
  EXPECT_EQ(detail.reason, "LOST_RACE");
  EXPECT_EQ(detail.catalogue, "SLUICE-QUEUE-0004");
  EXPECT_EQ(detail.hint, "read again");
  EXPECT_EQ(detail.current, "3:12");
  EXPECT_EQ(detail.retry_after, absl::Milliseconds(1250));
}

TEST(StatusTest, AnErrorWithoutDetailSendsNone) {
  const grpc::Status sent = ToGrpcStatus(absl::NotFoundError("no job"));
  EXPECT_EQ(sent.error_details(), "");
  EXPECT_EQ(FromGrpcStatus(sent), absl::NotFoundError("no job"));
  EXPECT_TRUE(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())).ok());
}

TEST(StatusTest, DetailsOfOthersAndBrokenOnesAreLeftOut) {
  google::rpc::ErrorInfo info;
  info.set_reason("QUOTA");
  info.set_domain("elsewhere");
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(grpc::Status(grpc::UNAVAILABLE, "x", details.SerializeAsString()))), "");
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::UNAVAILABLE, "x", "\xff\xff")), absl::UnavailableError("x"));
}

TEST(StatusTest, AHugeMessageIsCutToWhatMetadataMayHold) {
  const grpc::Status sent = ToGrpcStatus(ErrorWith(
      absl::StatusCode::kInternal, {.reason = "BUG", .hint = std::string(1 << 20, 'h')}, std::string(1 << 20, 'm')));
  EXPECT_LT(sent.error_message().size() + sent.error_details().size(), 12u << 10);
}

TEST(ConvertTest, TimesKeepTheirNanosecondsBothWays) {
  for (const absl::Duration duration : {absl::Nanoseconds(1'500'000'001), absl::Nanoseconds(-1'500'000'001), absl::ZeroDuration()}) {
    EXPECT_EQ(FromProto(ToProto(duration)), duration);
    EXPECT_EQ(FromProto(ToProto(absl::UnixEpoch() + duration)), absl::UnixEpoch() + duration);
  }
  EXPECT_GE(ToProto(absl::UnixEpoch() - absl::Nanoseconds(1)).nanos(), 0);
}

TEST(ConvertTest, VersionsComeBack) {
  const VersionRun run{.version = {3, 12}, .count = 7, .policy = 1};
  EXPECT_EQ(FromProto(ToProto(run)), run);
}

}  // namespace
}  // namespace sluice::rpc
