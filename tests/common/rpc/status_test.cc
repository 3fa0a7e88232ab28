#include "common/rpc/status.h"

#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

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

TEST(StatusTest, AHintCrossesTheWireWithoutAReasonToo) {
  const absl::Status sent =
      ErrorWith(absl::StatusCode::kInvalidArgument, {.hint = "pass --job"}, "no job");
  const absl::Status received = FromGrpcStatus(ToGrpcStatus(sent));

  EXPECT_EQ(received.message(), "no job");
  EXPECT_EQ(DetailOf(received).hint, "pass --job");
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

  EXPECT_EQ(
      ReasonOf(FromGrpcStatus(grpc::Status(grpc::UNAVAILABLE, "x", details.SerializeAsString()))),
      "");
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::UNAVAILABLE, "x", "\xff\xff")),
            absl::UnavailableError("x"));
}

TEST(StatusTest, AHugeMessageIsCutToWhatMetadataMayHold) {
  const grpc::Status sent = ToGrpcStatus(
      ErrorWith(absl::StatusCode::kInternal, {.reason = "BUG", .hint = std::string(1 << 20, 'h')},
                std::string(1 << 20, 'm')));
  // All metadata of a call may have 16 KiB together.
  EXPECT_LT(sent.error_message().size() + sent.error_details().size(), 12u << 10);
}

TEST(StatusTest, BytesThatAreNotUtf8CostNeitherTheReasonNorTheRestOfTheText) {
  const absl::Status sent = ErrorWith(absl::StatusCode::kInvalidArgument,
                                      {.reason = "BAD_ROW",
                                       .catalogue = "SLUICE-DATA-0001",
                                       .hint = "mend caf\xe9.jsonl",
                                       .current = "\xff"},
                                      "caf\xe9.jsonl:1:3: ill-formed \xff\xfe");
  const absl::Status received = FromGrpcStatus(ToGrpcStatus(sent));

  EXPECT_EQ(received.message(), "caf\xef\xbf\xbd.jsonl:1:3: ill-formed \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(ReasonOf(received), "BAD_ROW");
  EXPECT_EQ(DetailOf(received).catalogue, "SLUICE-DATA-0001");
  EXPECT_EQ(DetailOf(received).hint, "mend caf\xef\xbf\xbd.jsonl");
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::UNAVAILABLE, "\xff")),
            absl::UnavailableError("\xef\xbf\xbd"));
}

TEST(StatusTest, ALongTextIsCutBetweenTwoCharacters) {
  // The characters have two bytes, so in one of the two texts the limit lies inside a character.
  for (size_t before : {0, 1}) {
    std::string text(before, 'x');
    while (text.size() < 10'000) text += "\xc3\xa9";

    const absl::Status received = FromGrpcStatus(ToGrpcStatus(
        ErrorWith(absl::StatusCode::kInternal, {.reason = "BUG", .hint = text}, text)));

    EXPECT_EQ(ReasonOf(received), "BUG");
    EXPECT_EQ(text.substr(0, received.message().size()), received.message());
    EXPECT_EQ(text.substr(0, DetailOf(received).hint.size()), DetailOf(received).hint);
    EXPECT_GT(received.message().size(), 4000u);
  }
}

TEST(ConvertTest, TimesKeepTheirNanosecondsBothWays) {
  for (const absl::Duration duration : {absl::Nanoseconds(1'500'000'001),
                                        absl::Nanoseconds(-1'500'000'001), absl::ZeroDuration()}) {
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
