#include "tools/sluice/exit_code.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice::cli
