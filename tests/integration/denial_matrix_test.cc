// Every method of the real daemons, called by everybody: without a certificate, with one that has
// expired or that another authority has signed, with that of each role, and for a job or a daemon
// that is not the caller's. A method that is added is covered without a change here, and a service
// that is added fails the first test until its daemon is named.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/client.h"
#include "common/rpc/credentials.h"
#include "common/rpc/stream.h"
#include "sluice/admin/v1/admin.pb.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/env/v1/env.pb.h"
#include "sluice/plugin/v1/plugin.pb.h"
#include "sluice/reward/v1/reward.pb.h"
#include "sluice/rpc/v1/options.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/proto/contracts.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::integration {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// The daemons that serve each service.
const std::map<std::string, std::vector<std::string>>& Servers() {
  static const auto* const servers = new std::map<std::string, std::vector<std::string>>{
      {"JobService", {"controller-0"}},
      {"RegistryService", {"controller-0"}},
      {"QueueService", {"queue-0"}},
      {"EngineService", {"rollout-0"}},
      {"RewardService", {"reward-0"}},
      {"WeightsService", {"trainer-0", "rollout-0"}},
      {"RendezvousService", {"trainer-0"}},
      {"ScoreService", {"reward-0"}},
      {"AdminService", {"controller-0", "queue-0", "rollout-0", "reward-0", "trainer-0"}},
  };
  return *servers;
}

// The services that code of users serves, which has no access check of ours.
const std::set<std::string>& ServicesOfUsers() {
  static const auto* const services = new std::set<std::string>{"EnvService", "RewardPlugin"};
  return *services;
}

// All methods of the proto files.
std::vector<const MethodDescriptor*> AllMethods() {
  // Links the proto files that no other code of this program uses.
  (void)env::v1::DescribeRequest::descriptor();
  (void)plugin::v1::DescribeRequest::descriptor();
  (void)reward::v1::ScoreRequest::descriptor();
  return contracts::Methods();
}

// The methods of the daemons.
std::vector<const MethodDescriptor*> ServedMethods() {
  std::vector<const MethodDescriptor*> methods;
  for (const MethodDescriptor* method : AllMethods()) {
    if (!ServicesOfUsers().contains(method->service()->name())) methods.push_back(method);
  }
  return methods;
}

std::unique_ptr<Message> NewMessage(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

// How a call of the method ends.
absl::Status Call(const std::string& address, const MethodDescriptor& method,
                  const Message& request, std::shared_ptr<const rpc::Credentials> credentials) {
  const auto channel = rpc::Connect(address, rpc::kDaemonRoles, {.credentials = credentials});
  if (!channel.ok()) return channel.status();
  const std::unique_ptr<Message> response = NewMessage(method.output_type());
  rpc::ClientStream stream(**channel, *method.input_type(), nullptr, absl::Seconds(10));
  stream.Write(request);
  stream.WritesDone();
  // A stream that answers has accepted the caller.
  if (stream.Read(response.get())) {
    stream.TryCancel();
    (void)stream.Finish();
    return absl::OkStatus();
  }
  return stream.Finish();
}

absl::Status CallWithNothing(const std::string& address, const MethodDescriptor& method,
                             std::shared_ptr<const rpc::Credentials> credentials) {
  return Call(address, method, *NewMessage(method.input_type()), std::move(credentials));
}

bool MayCall(const MethodDescriptor& method, rpc::Role role) {
  const rpc::v1::MethodRule& rule = method.options().GetExtension(rpc::v1::method);
  for (const int allowed : rule.roles()) {
    if (allowed == static_cast<int>(role) || allowed == rpc::v1::ROLE_ANY) return true;
    if (allowed == rpc::v1::ROLE_DAEMON && role >= rpc::Role::kController) return true;
  }
  return false;
}

// The head of a call, in the request or in its header, if requests of this type have one.
common::v1::Call* MutableCall(Message* request) {
  const google::protobuf::Reflection& reflection = *request->GetReflection();
  for (int i = 0; i < request->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = request->GetDescriptor()->field(i);
    if (field->is_repeated() || field->message_type() == nullptr) continue;
    if (field->message_type() == common::v1::Call::descriptor())
      return static_cast<common::v1::Call*>(reflection.MutableMessage(request, field));
    if (field->name() != "header") continue;
    return MutableCall(reflection.MutableMessage(request, field));
  }
  return nullptr;
}

// Sets the string field `name`, if requests of this type have it.
bool SetText(Message* request, const std::string& name, const std::string& value) {
  const FieldDescriptor* const field = request->GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return false;
  request->GetReflection()->SetString(request, field, value);
  return true;
}

// The requests of a type with each verb, or a single one without verbs; each with a question, if
// the type has some. So they are judged by who sends them.
std::vector<std::unique_ptr<Message>> MakeRequests(const google::protobuf::Descriptor* type) {
  std::vector<std::unique_ptr<Message>> requests;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (field->is_repeated() || field->enum_type() == nullptr) continue;
    for (int verb = 1; verb < field->enum_type()->value_count(); ++verb) {
      requests.push_back(NewMessage(type));
      requests.back()->GetReflection()->SetEnumValue(requests.back().get(), field,
                                                     field->enum_type()->value(verb)->number());
    }
  }
  if (requests.empty()) requests.push_back(NewMessage(type));

  for (int i = 0; i < type->real_oneof_decl_count(); ++i) {
    const FieldDescriptor* const field = type->oneof_decl(i)->field(0);
    if (field->message_type() == nullptr) continue;
    for (const auto& request : requests)
      (void)request->GetReflection()->MutableMessage(request.get(), field);
  }
  return requests;
}

class DenialMatrixTest : public testing::Test {
 protected:
  std::shared_ptr<const rpc::Credentials> Load(const std::string& name) const {
    auto credentials = rpc::Credentials::Load(cli::FleetTlsDir(cluster_.dir(), name));
    EXPECT_EQ(credentials.status(), absl::OkStatus()) << name;
    return credentials.ok() ? *credentials : nullptr;
  }

  // Each method with the address of each daemon that serves it.
  std::vector<std::pair<const MethodDescriptor*, std::string>> ServedMethodsByAddress() const {
    std::vector<std::pair<const MethodDescriptor*, std::string>> served;
    for (const MethodDescriptor* method : ServedMethods()) {
      for (const std::string& daemon : Servers().at(method->service()->name()))
        served.emplace_back(method, cluster_.address(daemon));
    }
    return served;
  }

  pki::KeyPair ReadAuthority() const {
    const std::string ca = cluster_.dir() + "/ca/";
    return {*ReadFile(ca + pki::kAuthorityFile), Secret(*ReadFile(ca + pki::kAuthorityKeyFile))};
  }

  // The credentials of `name` with another certificate, of the same identity, that `signer` has
  // issued with a validity that ends at `until`. They still trust the daemons.
  std::shared_ptr<const rpc::Credentials> LoadWith(const std::string& name, const char* kind,
                                                   const pki::KeyPair& signer, absl::Time until) {
    const std::string from = cli::FleetTlsDir(cluster_.dir(), name),
                      dir = absl::StrCat(from, "-", kind);
    const absl::Time now = absl::Now();
    const pki::TlsFiles files = *pki::ReadTlsDir(from, now);
    EXPECT_EQ(pki::WriteTlsDir(dir, files), absl::OkStatus());
    auto credentials = rpc::Credentials::Load(dir);
    EXPECT_EQ(credentials.status(), absl::OkStatus()) << dir;

    // The files are read again when a connection is made, without the checks of Load().
    const pki::Certificate certificate = *pki::ParseCertificate(files.pair.certificate);
    auto pair = pki::IssueCertificate(signer, certificate.subject, {now - absl::Minutes(4), until});
    EXPECT_EQ(pair.status(), absl::OkStatus());
    EXPECT_EQ(pki::WriteTlsDir(dir, {*std::move(pair), files.authority}), absl::OkStatus());
    return *std::move(credentials);
  }

  // Who works for the job, by role.
  std::map<rpc::Role, std::string> WorkersOf(const std::string& job) {
    admin::v1::DaemonsResponse daemons;
    EXPECT_EQ(rpc::Call(cluster_.controller(), admin::v1::DaemonsRequest(), &daemons),
              absl::OkStatus());
    std::map<rpc::Role, std::string> workers;
    for (const admin::v1::Daemon& daemon : daemons.daemons()) {
      for (const std::string& id : daemon.jobs()) {
        if (id == job) workers[static_cast<rpc::Role>(daemon.role())] = daemon.daemon();
      }
    }
    return workers;
  }

  Cluster cluster_{{.rollouts = 2, .rewards = 2, .trainers = 2, .tls = true}};
};

// The other tests look each service up in Servers(), so this one comes first and names a new one.
TEST(DenialMatrixServicesTest, EachServiceOfTheProtoFilesIsServedInTheMatrixOrByCodeOfUsers) {
  std::set<std::string> services;
  for (const MethodDescriptor* method : AllMethods()) {
    const std::string& service = method->service()->name();
    services.insert(service);
    EXPECT_NE(Servers().contains(service), ServicesOfUsers().contains(service))
        << service << ": name the daemon that serves it in Servers(), or add it to "
        << "ServicesOfUsers() if no daemon of ours does";
  }
  for (const auto& [service, daemons] : Servers())
    EXPECT_TRUE(services.contains(service)) << service << " is in no proto file";
  for (const std::string& service : ServicesOfUsers())
    EXPECT_TRUE(services.contains(service)) << service << " is in no proto file";
}

TEST_F(DenialMatrixTest, EachMethodIsOpenToItsRolesAlone) {
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  std::vector<std::shared_ptr<const rpc::Credentials>> callers;
  for (const char* name : {"controller-0", "queue-0", "rollout-0", "reward-0", "trainer-0",
                           "viewer", "submitter", cli::kFleetOperator})
    callers.push_back(Load(name));

  int denied = 0;
  for (const auto& [method, address] : ServedMethodsByAddress()) {
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
  }

  EXPECT_THAT(cluster_.Log("controller-0"),
              testing::HasSubstr(R"("event":"audit","role":"operator","person":"operator",)"
                                 R"("method":"Failpoint")"));
  EXPECT_GE(ServedMethods().size(), 35u);
  EXPECT_GE(denied, 150);
}

TEST_F(DenialMatrixTest, WithoutAValidCertificateOfTheFleetNobodyReachesAnyMethod) {
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  const absl::Time now = absl::Now();
  const pki::KeyPair ours = ReadAuthority(),
                     other = *pki::MakeAuthority({.name = "other", .uri = "spiffe://sluice"},
                                                 {now - absl::Hours(1), now + absl::Hours(1)});
  std::map<rpc::Role, std::vector<std::shared_ptr<const rpc::Credentials>>> strangers;
  for (const char* name : {"controller-0", "queue-0", "rollout-0", "reward-0", "trainer-0",
                           "viewer", "submitter", cli::kFleetOperator}) {
    const auto valid = Load(name);
    strangers[valid->identity().role] = {
        nullptr,  // No certificate at all.
        LoadWith(name, "expired", ours, now - absl::Minutes(1)),
        LoadWith(name, "of-another-authority", other, now + absl::Hours(1))};
  }

  for (const auto& [method, address] : ServedMethodsByAddress()) {
    for (const auto& [role, callers] : strangers) {
      if (!MayCall(*method, role)) continue;  // It would be refused anyway.
      for (size_t i = 0; i < callers.size(); ++i) {
        const absl::Status status = CallWithNothing(address, *method, callers[i]);
        // There is no connection, so no daemon gives a reason.
        EXPECT_TRUE(absl::IsUnavailable(status) && ReasonOf(status).empty())
            << method->full_name() << " as " << rpc::RoleName(role) << ", stranger " << i << ": "
            << status;
      }
    }
  }
}

TEST_F(DenialMatrixTest, AWorkerOfOneJobIsRefusedByEachMethodForAnotherJob) {
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  const auto own = SubmitDigits(&cluster_, /*steps=*/1'000'000, {"name=own"});
  ASSERT_EQ(own.status(), absl::OkStatus());
  const auto other = SubmitDigits(&cluster_, /*steps=*/1'000'000, {"name=other"});
  ASSERT_EQ(other.status(), absl::OkStatus());
  ASSERT_EQ((*own)->AwaitStep(1, kLong), absl::OkStatus());
  ASSERT_EQ((*other)->AwaitStep(1, kLong), absl::OkStatus());
  const auto strangers = WorkersOf((*own)->id()), workers = WorkersOf((*other)->id());
  const std::multimap<std::string, std::string> servers = {
      {"QueueService", "queue-0"},
      {"EngineService", workers.at(rpc::Role::kRollout)},
      {"RewardService", workers.at(rpc::Role::kReward)},
      {"ScoreService", workers.at(rpc::Role::kReward)},
      {"WeightsService", workers.at(rpc::Role::kTrainer)},
      {"WeightsService", workers.at(rpc::Role::kRollout)},
      {"RendezvousService", workers.at(rpc::Role::kTrainer)}};

  std::set<std::string> checked;
  const auto check = [&](const MethodDescriptor* method, const std::string& server) {
    for (const rpc::Role role : {rpc::Role::kRollout, rpc::Role::kReward, rpc::Role::kTrainer}) {
      if (!MayCall(*method, role)) continue;
      const auto call_as = [&](const std::string& worker) {
        const std::unique_ptr<Message> request = NewMessage(method->input_type());
        common::v1::Call* const call = MutableCall(request.get());
        EXPECT_NE(call, nullptr) << method->full_name() << " does not say for which job it is";
        if (call == nullptr) return absl::OkStatus();
        call->mutable_job()->set_job((*other)->id());
        call->mutable_job()->set_worker(worker);
        call->mutable_job()->set_incarnation(1);
        return Call(cluster_.address(server), *method, *request, Load(worker));
      };
      ASSERT_NE(strangers.at(role), workers.at(role)) << "both jobs have the same worker";

      const absl::Status refused = call_as(strangers.at(role));
      EXPECT_EQ(ReasonOf(refused), "NOT_LISTED")
          << method->full_name() << " as " << strangers.at(role) << ": " << refused;
      // The same request of the job's own worker is judged by what it asks for.
      const absl::Status judged = call_as(workers.at(role));
      EXPECT_NE(ReasonOf(judged), "NOT_LISTED")
          << method->full_name() << " as " << workers.at(role) << ": " << judged;
      checked.insert(method->full_name());
    }
  };
  for (const MethodDescriptor* method : ServedMethods()) {
    const auto [first, last] = servers.equal_range(method->service()->name());
    for (auto server = first; server != last; ++server)
      ASSERT_NO_FATAL_FAILURE(check(method, server->second));
  }
  EXPECT_GE(checked.size(), 20u);

  // A submitter is not told the ids of others' jobs by what it may see of the daemons.
  const auto count_jobs_of_daemons = [&](const char* person) {
    const auto controller = rpc::Connect(cluster_.address("controller-0"), {rpc::Role::kController},
                                         {.credentials = Load(person)});
    admin::v1::DaemonsResponse daemons;
    EXPECT_EQ(rpc::Call(**controller, admin::v1::DaemonsRequest(), &daemons), absl::OkStatus());
    int jobs = 0;
    for (const admin::v1::Daemon& daemon : daemons.daemons()) jobs += daemon.jobs_size();
    return jobs;
  };
  EXPECT_GE(count_jobs_of_daemons(cli::kFleetOperator), 8) << "each has a daemon of four roles";
  EXPECT_GE(count_jobs_of_daemons("viewer"), 8);
  EXPECT_EQ(count_jobs_of_daemons("alice"), 0);
}

TEST_F(DenialMatrixTest, NobodySpeaksForAnotherDaemonOrAnothersJobAtTheController) {
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster_, /*steps=*/1'000'000);  // It belongs to the operator.
  ASSERT_EQ(job.status(), absl::OkStatus());

  int jobs = 0, daemons = 0;
  const std::string address = cluster_.address("controller-0");
  for (const MethodDescriptor* method : ServedMethods()) {
    const std::string& service = method->service()->name();
    for (const auto& request : MakeRequests(method->input_type())) {
      if (service == "JobService" && MayCall(*method, rpc::Role::kSubmitter) &&
          SetText(request.get(), "job", (*job)->id())) {
        const absl::Status status = Call(address, *method, *request, Load("alice"));
        if (ReasonOf(status) == "NOT_BUILT") continue;  // Nobody can do this in this build.
        EXPECT_EQ(ReasonOf(status), "OTHERS_JOB")
            << method->full_name() << " " << request->ShortDebugString() << ": " << status;
        ++jobs;
      }
      if (service == "RegistryService" && SetText(request.get(), "daemon", "rollout-1")) {
        const absl::Status status = Call(address, *method, *request, Load("rollout-0"));
        EXPECT_EQ(ReasonOf(status), "WRONG_ID") << method->full_name() << ": " << status;
        ++daemons;
      }
    }
  }
  EXPECT_GE(jobs, 5);
  EXPECT_GE(daemons, 2);
}

}  // namespace
}  // namespace sluice::integration
