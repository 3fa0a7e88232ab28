#include "common/rpc/identity.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::rpc {
namespace {

TEST(IdentityTest, AUriIsReadBackAsTheIdentityItWasMadeOf) {
  for (const Role role : {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kController,
                          Role::kQueue, Role::kRollout, Role::kReward, Role::kTrainer}) {
    for (const char* name : {"queue-0", "*", "0", "a.b_c-d"}) {
      const Identity identity = {role, name};
      const std::string uri = IdentityUri("prod.example", identity);
      EXPECT_EQ(ParseIdentity(uri, "prod.example").value_or(Identity()), identity) << uri;
      EXPECT_EQ(*DomainOf(uri), "prod.example");
    }
  }
}

TEST(IdentityTest, AnythingElseIsRefused) {
  const std::string long_name(64, 'a');
  for (const std::string& uri :
       {std::string(), std::string("spiffe://"), std::string("spiffe://d"),
        std::string("spiffe://d/sluice/queue"), std::string("spiffe://d/sluice/queue/"),
        std::string("spiffe://d/sluice/king/x"), std::string("spiffe://d/sluice/unknown/x"),
        std::string("spiffe://d/sluice/queue/x/y"), std::string("spiffe://d/other/queue/x"),
        std::string("https://d/sluice/queue/x"), std::string("spiffe:///sluice/queue/x"),
        std::string("spiffe://D/sluice/queue/x"), std::string("spiffe://d/sluice/queue/../x"),
        std::string("spiffe://d/sluice/queue/X"), std::string("spiffe://d/sluice/queue/-x"),
        std::string("spiffe://d/sluice/queue/x y"), std::string("spiffe://d/sluice/queue/x\0", 26),
        absl::StrCat("spiffe://d/sluice/queue/", long_name)})
    EXPECT_EQ(ReasonOf(ParseIdentity(uri, "d").status()), "BAD_IDENTITY") << uri;

  const absl::Status other = ParseIdentity("spiffe://d/sluice/queue/x", "e").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(ReasonOf(other), "OTHER_DOMAIN");
}

}  // namespace
}  // namespace sluice::rpc
