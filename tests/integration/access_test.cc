// Who may call what, on real daemons with certificates.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/client.h"
#include "common/rpc/credentials.h"
#include "common/rpc/stream.h"
#include "sluice/env/v1/env.pb.h"
#include "sluice/plugin/v1/plugin.pb.h"
#include "sluice/queue/v1/queue.pb.h"
#include "sluice/rpc/v1/options.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/proto/contracts.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::integration {
namespace {

using google::protobuf::MethodDescriptor;

// The daemon that serves a method, besides the AdminService of each.
const std::map<std::string, std::string>& Servers() {
  static const auto* const servers = new std::map<std::string, std::string>{
      {"JobService", "controller-0"},  {"RegistryService", "controller-0"},
      {"QueueService", "queue-0"},     {"EngineService", "rollout-0"},
      {"WeightsService", "trainer-0"}, {"AdminService", "controller-0"},
  };
  return *servers;
}

// How a call of the method with an empty request ends.
absl::Status CallWithNothing(const std::string& address, const MethodDescriptor& method,
                             std::shared_ptr<const rpc::Credentials> credentials) {
  const auto channel = rpc::Connect(address, rpc::kDaemonRoles, {.credentials = credentials});
  if (!channel.ok()) return channel.status();
  const std::unique_ptr<google::protobuf::Message> request(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(method.input_type())
          ->New());
  const std::unique_ptr<google::protobuf::Message> response(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(method.output_type())
          ->New());
  rpc::ClientStream stream(**channel, *method.input_type(), nullptr, absl::Seconds(10));
  stream.Write(*request);
  stream.WritesDone();
  // A stream that answers has accepted the caller.
  if (stream.Read(response.get())) {
    stream.TryCancel();
    (void)stream.Finish();
    return absl::OkStatus();
  }
  return stream.Finish();
}

bool IsDenial(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return reason == "WRONG_ROLE" || reason == "WRONG_ID" || reason == "BAD_IDENTITY" ||
         reason == "OTHER_DOMAIN";
}

bool MayCall(const MethodDescriptor& method, rpc::Role role) {
  const rpc::v1::MethodRule& rule = method.options().GetExtension(rpc::v1::method);
  for (const int allowed : rule.roles()) {
    if (allowed == static_cast<int>(role) || allowed == rpc::v1::ROLE_ANY) return true;
    if (allowed == rpc::v1::ROLE_DAEMON && role >= rpc::Role::kController) return true;
  }
  return false;
}

TEST(AccessTest, EachMethodOfEachDaemonIsOpenToItsRolesAloneAndToNobodyWithoutACertificate) {
  Cluster cluster({.tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto load = [&](const std::string& name) {
    auto credentials = rpc::Credentials::Load(cli::FleetTlsDir(cluster.dir(), name));
    EXPECT_EQ(credentials.status(), absl::OkStatus()) << name;
    return credentials.ok() ? *credentials : nullptr;
  };
  std::vector<std::shared_ptr<const rpc::Credentials>> callers;
  for (const char* name : {"controller-0", "queue-0", "rollout-0", "reward-0", "trainer-0",
                           "viewer", "submitter", cli::kFleetOperator})
    callers.push_back(load(name));

  // Links the proto files that no other code of this program uses.
  (void)env::v1::DescribeRequest::descriptor();
  (void)plugin::v1::DescribeRequest::descriptor();
  int methods = 0, denied = 0;
  for (const MethodDescriptor* method : contracts::Methods()) {
    const auto server = Servers().find(method->service()->name());
    if (server == Servers().end()) continue;  // Served by code of users.
    ++methods;
    const std::string address = cluster.address(server->second);
    for (const auto& caller : callers) {
      const absl::Status status = CallWithNothing(address, *method, caller);
      // Who may call is refused for what the empty request says, if at all.
      const bool by_role =
          ReasonOf(status) == "WRONG_ROLE" && DetailOf(status).catalogue == "SLUICE-AUTH-0005";
      EXPECT_EQ(by_role, !MayCall(*method, caller->identity().role))
          << method->full_name() << " as " << rpc::DescribeIdentity(caller->identity()) << ": "
          << status;
      denied += by_role;
    }
    const absl::Status bare = CallWithNothing(address, *method, nullptr);
    EXPECT_FALSE(bare.ok()) << method->full_name();
    EXPECT_FALSE(IsDenial(bare)) << "there is no connection at all: " << bare;
  }

  EXPECT_GE(methods, 35);
  EXPECT_GE(denied, 150);
}

TEST(AccessTest, ADaemonSpeaksForItselfAloneAndNotAsTheController) {
  Cluster cluster({.tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, /*steps=*/100000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(1, absl::Minutes(1)), absl::OkStatus());
  const auto rollout = rpc::Credentials::Load(cli::FleetTlsDir(cluster.dir(), "rollout-0"));
  ASSERT_EQ(rollout.status(), absl::OkStatus());
  const auto channel =
      *rpc::Connect(cluster.address("queue-0"), {rpc::Role::kQueue}, {.credentials = *rollout});
  const auto release = [&](const std::string& worker, int64_t incarnation) {
    queue::v1::ReleaseRequest request;
    request.mutable_call()->mutable_job()->set_job((*job)->id());
    request.mutable_call()->mutable_job()->set_worker(worker);
    request.mutable_call()->mutable_job()->set_incarnation(incarnation);
    request.set_worker("trainer-0");
    request.set_incarnation(1);
    request.set_reason(queue::v1::RELEASE_REASON_LOST);
    queue::v1::ReleaseResponse response;
    return ReasonOf(rpc::Call(*channel, request, &response));
  };

  EXPECT_EQ(release("controller-0", 0), "WRONG_ID");
  EXPECT_EQ(release("trainer-0", 1), "WRONG_ID");
  EXPECT_EQ(release("rollout-0", 0), "WRONG_INCARNATION");

  const int64_t steps = (*job)->steps();
  EXPECT_EQ((*job)->AwaitStep(steps + 2, absl::Minutes(1)), absl::OkStatus())
      << "the trainer still has its leases";
}

TEST(AccessTest, AJobRunsOverMutualTlsToItsEnd) {
  Cluster cluster({.rollouts = 2, .tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());

  const auto job = SubmitDigits(&cluster, /*steps=*/5);
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::integration
