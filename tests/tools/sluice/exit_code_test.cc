#include "tools/sluice/exit_code.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sluice::cli {
namespace {

TEST(ExitCode, EachKindOfErrorHasItsOwn) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 5);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 7);
  EXPECT_EQ(ExitCodeOf(absl::AlreadyExistsError("")), 8);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), 8);
  EXPECT_EQ(ExitCodeOf(absl::CancelledError("")), 130);
}

TEST(Complain, NamesTheCommandThatExplainsANumber) {
  const auto complain = [](const char* catalogue) {
    testing::internal::CaptureStderr();
    Complain(
        ErrorWith(absl::StatusCode::kNotFound, {.catalogue = catalogue, .hint = "look"}, "gone"));
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(complain("SLUICE-CTL-0006"),
            "error SLUICE-CTL-0006: gone\nhint: look\nmore: sluice explain SLUICE-CTL-0006\n");
  EXPECT_EQ(complain(""), "error: gone\nhint: look\n");
}

}  // namespace
}  // namespace sluice::cli
