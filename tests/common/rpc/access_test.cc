#include "common/rpc/access.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "sluice/rpc/v1/options.pb.h"
#include "tests/proto/contracts.h"

namespace sluice::rpc {
namespace {

constexpr Role kRoles[] = {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kController,
                           Role::kQueue,  Role::kRollout,   Role::kReward,   Role::kTrainer};

bool IsDaemon(Role role) { return role >= Role::kController; }

// Each method of the contracts with each role: what the proto file lists is allowed, and nothing
// else is.
TEST(AccessTest, EachMethodIsOpenToTheRolesOfItsRuleAlone) {
  int allowed = 0, denied = 0;
  for (const google::protobuf::MethodDescriptor* method : contracts::Methods()) {
    const v1::MethodRule& rule = method->options().GetExtension(v1::method);
    const std::string path = absl::StrCat("/", method->service()->full_name(), "/", method->name());
    for (const Role role : kRoles) {
      bool listed = false;
      for (const int r : rule.roles()) {
        listed = listed || r == static_cast<int>(role) || r == v1::ROLE_ANY ||
                 (r == v1::ROLE_DAEMON && IsDaemon(role));
      }

      const absl::Status status = CheckRole(path, {role, "x"});

      EXPECT_EQ(status.ok(), listed) << path << " " << RoleName(role);
      EXPECT_EQ(ReasonOf(status), listed ? "" : "WRONG_ROLE");
      ++(listed ? allowed : denied);
    }
  }

  EXPECT_GT(allowed, 60);
  EXPECT_GT(denied, 150);
}

TEST(AccessTest, StandardServicesAreOpenToEveryIdentity) {
  EXPECT_TRUE(CheckRole("/grpc.health.v1.Health/Check", {Role::kViewer, "x"}).ok());
  EXPECT_TRUE(CheckRole("", {Role::kViewer, "x"}).ok());
  EXPECT_TRUE(CheckRole("/no.such/Method", {Role::kViewer, "x"}).ok());
}

}  // namespace
}  // namespace sluice::rpc
