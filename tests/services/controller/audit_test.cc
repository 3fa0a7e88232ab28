// Who calls for a change is in the log, whatever comes of it. With a real server and certificates.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/client.h"
#include "common/rpc/credentials.h"
#include "common/rpc/identity.h"
#include "common/rpc/server.h"
#include "common/rpc/stream.h"
#include "common/testing/data.h"
#include "services/controller/control.h"
#include "services/controller/server.h"
#include "sluice/admin/v1/admin.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/services/controller/digits_spec.h"

namespace sluice::controller {
namespace {

class AuditTest : public testing::Test {
 protected:
  void SetUp() override {
    // The lowest level must not matter.
    log::Init("controller-0", log::Level::kError);
    host_ = {nullptr, &metrics_, [](absl::Status) {}};
    auto program =
        MakeController({.id = "controller-0", .data_dir = absl::StrCat(dir_, "/data")}, host_);
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = *std::move(program);
    const std::vector<grpc::Service*> services = program_->services();
    auto server =
        rpc::Server::Start({.credentials = Load(rpc::Role::kController, "controller-0")}, services);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    for (const auto& [name, role] : callers_) {
      auto channel = rpc::Connect(server_->address(), {rpc::Role::kController},
                                  {.credentials = Load(role, name)});
      ASSERT_TRUE(channel.ok()) << channel.status();
      channels_[name] = *std::move(channel);
    }
  }

  void TearDown() override {
    channels_.clear();
    program_->Drain();
    server_->Drain(absl::Seconds(1));
    server_.reset();
    program_.reset();
    std::filesystem::remove_all(dir_);
    log::Init("controller-0", log::Level::kInfo);
  }

  std::shared_ptr<const rpc::Credentials> Load(rpc::Role role, const std::string& name) {
    const absl::Time now = absl::Now();
    const pki::Validity validity{now - absl::Hours(1), now + absl::Hours(1)};
    if (authority_.certificate.empty()) {
      // Valid for longer than the certificates that are issued later.
      authority_ = *pki::MakeAuthority({.name = "authority", .uri = "spiffe://test"},
                                       {validity.from, validity.until + absl::Hours(1)});
    }
    const std::string dir = absl::StrCat(dir_, "/", name);
    const pki::Subject subject{.name = name, .uri = rpc::IdentityUri("test", {role, name})};
    EXPECT_TRUE(pki::WriteTlsDir(dir, {*pki::IssueCertificate(authority_, subject, validity),
                                       authority_.certificate})
                    .ok());
    auto credentials = rpc::Credentials::Load(dir);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return credentials.ok() ? *credentials : nullptr;
  }

  // Makes one call, which is not repeated, and checks that it gives one audit line: that of
  // `method` with `target`, a field and its value. A caller whose role may not call at all has
  // given no request, so `method` is then `denied_as` and there is no target.
  void ExpectOneLine(const std::string& caller, const google::protobuf::Message& request,
                     std::unique_ptr<google::protobuf::Message> response, const std::string& method,
                     const std::string& denied_as,
                     const std::pair<std::string, std::string>& target) {
    SCOPED_TRACE(absl::StrCat(method, " by ", caller));
    testing::internal::CaptureStderr();
    rpc::ClientStream stream(*channels_.at(caller), *request.GetDescriptor(), nullptr,
                             absl::Seconds(30));
    stream.Write(request);
    stream.WritesDone();
    while (stream.Read(response.get())) continue;
    const absl::Status status = stream.Finish();

    std::vector<nlohmann::json> lines;
    for (const absl::string_view text :
         absl::StrSplit(testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty())) {
      nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!line.is_discarded() && line.value("event", "") == "audit") lines.push_back(line);
    }
    ASSERT_EQ(lines.size(), 1u) << status;
    const nlohmann::json& line = lines[0];
    const bool denied = ReasonOf(status) == "WRONG_ROLE";
    EXPECT_EQ(line["person"], caller);
    EXPECT_EQ(line["role"], std::string(rpc::RoleName(callers_.at(caller))));
    EXPECT_EQ(line["method"], denied ? denied_as : method);
    if (denied) EXPECT_EQ(line["job"], "");
    else if (!target.first.empty()) EXPECT_EQ(line[target.first], target.second);
    EXPECT_EQ(line["result"], absl::StatusCodeToString(status.code())) << status;
    EXPECT_EQ(line["reason"], ReasonOf(status)) << status;
    results_[absl::StrCat(method, " by ", caller)] = status;
  }

  void ExpectSubmitLine(const std::string& caller, const std::string& name) {
    job::v1::SubmitRequest request;
    request.set_name(name);
    request.set_hash(std::string(32, 'h'));
    *request.mutable_spec() = Spec(name);
    ExpectOneLine(caller, request, std::make_unique<job::v1::SubmitResponse>(), "Submit", "Submit",
                  {"job", name});
  }

  const std::map<std::string, rpc::Role> callers_ = {{"root", rpc::Role::kOperator},
                                                     {"alice", rpc::Role::kSubmitter},
                                                     {"bob", rpc::Role::kSubmitter},
                                                     {"eve", rpc::Role::kViewer}};
  const std::string dir_ = testing_data::TempPath("audit");
  pki::KeyPair authority_;
  metrics::Registry metrics_;
  daemon::Host host_;
  std::unique_ptr<daemon::Program> program_;
  std::unique_ptr<rpc::Server> server_;
  std::map<std::string, std::shared_ptr<rpc::Channel>> channels_;
  std::map<std::string, absl::Status> results_;  // By "METHOD by CALLER".
};

TEST_F(AuditTest, EachVerbOfEachCallerGivesOneLine) {
  std::vector<int> verbs = {99};  // There is no such verb.
  for (int i = 0; i < job::v1::Verb_descriptor()->value_count(); ++i)
    verbs.push_back(job::v1::Verb_descriptor()->value(i)->number());
  ASSERT_GE(verbs.size(), 11u);

  for (const int verb : verbs) {
    const std::string name = absl::StrCat("job-", verb);
    ExpectSubmitLine("alice", name);
    job::v1::ControlRequest request;
    request.set_job(name);
    request.set_verb(static_cast<job::v1::Verb>(verb));
    if (verb == job::v1::VERB_SET) (*request.mutable_set())["limits.stall_warn"] = "90s";
    // The owner and the operator may change the job, so the others come first.
    for (const char* caller : {"eve", "bob", "root", "alice"}) {
      ExpectOneLine(caller, request, std::make_unique<job::v1::ControlResponse>(),
                    VerbName(request.verb()), "Control", {"job", name});
    }
  }

  EXPECT_EQ(ReasonOf(results_.at("Cancel by eve")), "WRONG_ROLE");
  EXPECT_EQ(ReasonOf(results_.at("Cancel by bob")), "OTHERS_JOB");
  EXPECT_EQ(results_.at("Cancel by root"), absl::OkStatus());
  EXPECT_EQ(results_.at("Cancel by alice"), absl::OkStatus());
  EXPECT_EQ(ReasonOf(results_.at("Pin by alice")), "NOT_BUILT");
  EXPECT_EQ(results_.at("Rollback by alice").code(), absl::StatusCode::kInvalidArgument)
      << "it names no version";
  EXPECT_EQ(results_.at("Verb 99 by alice").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AuditTest, EachOtherCallThatIsAuditedGivesOneLine) {
  for (const auto& [caller, role] : callers_) {
    ExpectSubmitLine(caller, absl::StrCat("of-", caller));

    admin::v1::DrainRequest drain;
    drain.set_daemon("rollout-9");
    drain.set_on(true);
    ExpectOneLine(caller, drain, std::make_unique<admin::v1::DrainResponse>(), "Drain", "Drain",
                  {"daemon", "rollout-9"});
    ExpectOneLine(caller, admin::v1::BackupRequest(), std::make_unique<admin::v1::BackupResponse>(),
                  "Backup", "Backup", {});

    admin::v1::FailpointRequest failpoint;
    failpoint.set_name("none");
    failpoint.set_action("off");
    ExpectOneLine(caller, failpoint, std::make_unique<admin::v1::FailpointResponse>(), "Failpoint",
                  "Failpoint", {"failpoint", "none"});
  }
  EXPECT_EQ(results_.at("Submit by bob"), absl::OkStatus());
  EXPECT_EQ(ReasonOf(results_.at("Submit by eve")), "WRONG_ROLE");
  EXPECT_EQ(ReasonOf(results_.at("Drain by alice")), "WRONG_ROLE");
  EXPECT_EQ(ReasonOf(results_.at("Drain by root")), "DAEMON");
  EXPECT_EQ(results_.at("Backup by root"), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::controller
