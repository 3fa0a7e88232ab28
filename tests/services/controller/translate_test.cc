#include "services/controller/translate.h"

#include <gtest/gtest.h>

#include "sluice/common/v1/common.pb.h"

namespace sluice::controller {
namespace {

TEST(Translate, ANodeOfAKindThatThisBuildDoesNotKnowKeepsItsId) {
  common::v1::WaitEdge edge;
  edge.mutable_waiter()->set_kind(common::v1::NODE_KIND_JOB);
  edge.mutable_on()->set_kind(static_cast<common::v1::NodeKind>(1000));
  edge.mutable_on()->set_id("disk-7");

  const Edge read = FromProto(edge);
  EXPECT_EQ(read.waiter.kind, "JOB");
  EXPECT_EQ(read.on.kind, "");
  EXPECT_EQ(read.on.id, "disk-7");

  common::v1::WaitEdge sent;
  ToProto(read, &sent);
  EXPECT_EQ(sent.on().kind(), common::v1::NODE_KIND_UNSPECIFIED);
  EXPECT_EQ(sent.on().id(), "disk-7");
}

}  // namespace
}  // namespace sluice::controller
