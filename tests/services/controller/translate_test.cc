#include "services/controller/translate.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/registry/v1/registry.pb.h"

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

registry::v1::RegisterRequest RegisterOfARollout() {
  registry::v1::RegisterRequest request;
  request.set_daemon("rollout-0");
  request.set_role(rpc::v1::ROLE_ROLLOUT);
  request.set_boot(std::string(16, 'b'));
  request.set_build("1.2.3");
  (*request.mutable_addresses())["grpc"] = "10.0.0.7:7420";
  (*request.mutable_addresses())["ops"] = "[fd00::7]:7421";
  (*request.mutable_labels())["zone"] = "a";
  return request;
}

TEST(Translate, WhatADaemonSaysOfItselfHasLimits) {
  using Request = registry::v1::RegisterRequest;
  EXPECT_EQ(FromProto(RegisterOfARollout()).status(), absl::OkStatus());

  const std::vector<std::pair<const char*, std::function<void(Request&)>>> cases = {
      {"no id", [](Request& r) { r.clear_daemon(); }},
      {"a path as id", [](Request& r) { r.set_daemon("../rollout-0"); }},
      {"a long id", [](Request& r) { r.set_daemon(std::string(64, 'a')); }},
      {"no role", [](Request& r) { r.clear_role(); }},
      {"a short boot id", [](Request& r) { r.set_boot("b"); }},
      {"a negative incarnation", [](Request& r) { r.set_incarnation(-1); }},
      {"an incarnation that overflows",
       [](Request& r) { r.set_incarnation(std::numeric_limits<int64_t>::max()); }},
      {"a long build", [](Request& r) { r.set_build(std::string(257, 'b')); }},
      {"an address without a port",
       [](Request& r) { (*r.mutable_addresses())["grpc"] = "10.0.0.7"; }},
      {"an address with a scheme",
       [](Request& r) { (*r.mutable_addresses())["grpc"] = "unix:/tmp/socket:1"; }},
      {"an address with another inside",
       [](Request& r) { (*r.mutable_addresses())["grpc"] = "a,b:1"; }},
      {"a port of six digits",
       [](Request& r) { (*r.mutable_addresses())["grpc"] = "10.0.0.7:742000"; }},
      {"many addresses",
       [](Request& r) {
         for (int i = 0; i < 9; ++i) (*r.mutable_addresses())[absl::StrCat("l", i)] = "a:1";
       }},
      {"a long label", [](Request& r) { (*r.mutable_labels())["x"] = std::string(257, 'x'); }},
      {"many labels",
       [](Request& r) {
         for (int i = 0; i < 33; ++i) (*r.mutable_labels())[absl::StrCat("l", i)] = "";
       }},
      {"many devices",
       [](Request& r) {
         for (int i = 0; i < 65; ++i) r.mutable_capacity()->add_devices("cpu");
       }},
  };
  for (const auto& [what, spoil] : cases) {
    Request request = RegisterOfARollout();
    spoil(request);
    EXPECT_EQ(FromProto(request).status().code(), absl::StatusCode::kInvalidArgument) << what;
  }
}

}  // namespace
}  // namespace sluice::controller
