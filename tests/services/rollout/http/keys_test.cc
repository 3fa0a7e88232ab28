#include "services/rollout/http/keys.h"

#include <sys/stat.h>

#include "common/base/file.h"
#include "common/testing/data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::rollout::http {
namespace {

constexpr char kText[] =
    "# who asks\nlab 0123456789abcdef 8\n\nlab fedcba9876543210\nclass aaaaaaaaaaaaaaaaaaaaaaaa\n";

TEST(KeysTest, AKeyNamesItsTenantAndItsQuota) {
  const auto keys = Keys::Parse(kText, "keys");
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_NE(keys->Find("Bearer fedcba9876543210"), nullptr);
  EXPECT_EQ(keys->Find("bearer fedcba9876543210")->name, "lab");
  EXPECT_EQ(keys->Find("Bearer 0123456789abcdef")->most_answers, 8u);
  EXPECT_EQ(keys->Find("Bearer aaaaaaaaaaaaaaaaaaaaaaaa")->most_answers, 0u);
}

TEST(KeysTest, WhatIsNoKeyFindsNobody) {
  const auto keys = Keys::Parse(kText, "keys");
  ASSERT_TRUE(keys.ok());
  for (const char* header : {"", "Bearer", "Bearer ", "0123456789abcdef", "Basic 0123456789abcdef",
                             "Bearer 0123456789abcde", "Bearer 0123456789abcdef0"}) {
    EXPECT_EQ(keys->Find(header), nullptr) << header;
  }
}

TEST(KeysTest, ABrokenLineIsNamedByNumberAndItsKeyIsNot) {
  for (const char* text :
       {"lab\n", "lab 0123456789abcdef 0\n", "lab 0123456789abcdef x\n", "lab short\n",
        "lab 0123456789abcdef 1 2\n", "a 0123456789abcdef\nb 0123456789abcdef\n"}) {
    const absl::Status status = Keys::Parse(text, "keys").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("keys:"));
    EXPECT_THAT(std::string(status.message()),
                testing::Not(testing::HasSubstr("0123456789abcdef")));
  }

  EXPECT_EQ(Keys::Parse("# none\n", "keys").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(KeysTest, AFileThatOthersMayReadIsRefused) {
  const std::string path = testing_data::TempPath("api_keys");
  ASSERT_TRUE(WriteFileAtomic(path, kText).ok());
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(Keys::Load(path).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const mode_t mode : {0600, 0440}) {  // Kubernetes mounts Secrets with 0440.
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(Keys::Load(path).ok());
  }
}

}  // namespace
}  // namespace sluice::rollout::http
