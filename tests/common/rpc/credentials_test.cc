// What a server and a channel with certificates accept, over real connections on loopback.
#include "common/rpc/credentials.h"

#include <gmock/gmock.h>
#include <grpc/grpc_security_constants.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/access.h"
#include "common/rpc/client.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "sluice/queue/v1/queue.grpc.pb.h"

namespace sluice::rpc {
namespace {
using ::testing::HasSubstr;

// Serves Seal, and notes who called it. Checks that the call speaks for its caller.
class Queue : public queue::v1::QueueService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Seal(grpc::CallbackServerContext* context,
                                 const queue::v1::SealRequest* request,
                                 queue::v1::SealResponse*) override {
    const std::optional<Identity> caller = CallerOf(*context);
    const auto certificates =
        context->auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    {
      MutexLock lock(&mu_);
      last_caller_ = caller ? DescribeIdentity(*caller) : "nobody";
      certificate_ =
          certificates.empty() ? "" : std::string(certificates[0].data(), certificates[0].size());
      called_.NotifyAll();
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(CheckSpeaksFor(*context, request->call().job().worker())));
    return reactor;
  }
  std::string last_caller() {
    MutexLock lock(&mu_);
    return last_caller_;
  }
  // Waits for a call over a connection with this certificate of the client.
  bool AwaitCertificate(const std::string& pem, absl::Duration timeout) {
    const absl::Time end = absl::Now() + timeout;
    MutexLock lock(&mu_);
    while (certificate_ != pem && absl::Now() < end) called_.WaitFor(&mu_, end - absl::Now());
    return certificate_ == pem;
  }

 private:
  Mutex mu_;
  CondVar called_;
  std::string last_caller_ ABSL_GUARDED_BY(mu_);
  std::string certificate_ ABSL_GUARDED_BY(mu_);
};

class CredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(dir_); }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  static pki::KeyPair MakeAuthority() {
    const absl::Time now = absl::Now();
    return *pki::MakeAuthority({.name = "authority", .uri = "spiffe://test"},
                               {now - absl::Hours(48), now + absl::Hours(48)});
  }

  // A folder with a certificate of `uri`.
  std::string IssueUri(const std::string& name, const std::string& uri,
                       const pki::KeyPair& authority, absl::Duration lifetime = absl::Hours(1)) {
    const absl::Time now = absl::Now();
    const std::string dir = absl::StrCat(dir_, "/", name);
    const pki::KeyPair pair = *pki::IssueCertificate(authority, {.name = name, .uri = uri},
                                                     {now - absl::Hours(24), now + lifetime});
    EXPECT_TRUE(pki::WriteTlsDir(dir, {pair, authority.certificate}).ok());
    return dir;
  }
  std::string Issue(Role role, const std::string& name) {
    return IssueUri(absl::StrCat(RoleName(role), "-", name == "*" ? "any" : name),
                    IdentityUri("test", {role, name}), authority_);
  }
  static std::shared_ptr<const Credentials> Load(const std::string& dir) {
    auto credentials = Credentials::Load(dir, absl::Seconds(1));
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return credentials.ok() ? *credentials : nullptr;
  }

  void StartServer(absl::Duration connection_age = absl::Minutes(30)) {
    grpc::Service* const services[] = {&queue_};
    auto server = Server::Start({.credentials = Load(Issue(Role::kQueue, "queue-0")),
                                 .connection_age = connection_age,
                                 .metrics = &metrics_},
                                services);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // The status of one Seal of `worker` by a caller with these credentials.
  absl::Status Seal(std::shared_ptr<const Credentials> credentials, const std::string& worker,
                    std::initializer_list<Role> peers = {Role::kQueue}) {
    const auto channel = Connect(server_->address(), peers, {.credentials = credentials});
    if (!channel.ok()) return channel.status();
    return SealOver(**channel, worker);
  }
  static absl::Status SealOver(const Channel& channel, const std::string& worker) {
    queue::v1::SealRequest request;
    request.mutable_call()->mutable_job()->set_worker(worker);
    queue::v1::SealResponse response;
    // The first wait would be longer than the time limit, so the call is tried once.
    return Call(channel, request, &response,
                {.give_up = absl::Seconds(30),
                 .backoff = {.first = absl::Minutes(5), .longest = absl::Minutes(5)}});
  }

  const std::string dir_ = absl::StrCat(::testing::TempDir(), "/credentials_test_", getpid());
  const pki::KeyPair authority_ = MakeAuthority();
  metrics::Registry metrics_;
  Queue queue_;
  std::unique_ptr<Server> server_;
};

TEST_F(CredentialsTest, ACallerOfTheRoleIsKnownByItsCertificate) {
  StartServer();

  EXPECT_EQ(Seal(Load(Issue(Role::kRollout, "rollout-1")), "rollout-1"), absl::OkStatus());

  EXPECT_EQ(queue_.last_caller(), "rollout 'rollout-1'");
}

TEST_F(CredentialsTest, AnotherRoleIsDeniedWithTheRolesThatMay) {
  StartServer();

  const absl::Status status = Seal(Load(Issue(Role::kReward, "reward-0")), "reward-0");

  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(status), "WRONG_ROLE");
  EXPECT_EQ(DetailOf(status).catalogue, "SLUICE-AUTH-0005");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("reward 'reward-0' may not call QueueService.Seal, which is for: rollout"));
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("sluice_rpc_denied_total{method=\"Seal\",reason=\"WRONG_ROLE\"} 1"));
  EXPECT_EQ(queue_.last_caller(), "") << "the call did not reach the service";
}

TEST_F(CredentialsTest, NobodySpeaksForAnotherDaemonUnlessTheCertificateIsOfTheWholeRole) {
  StartServer();

  EXPECT_EQ(ReasonOf(Seal(Load(Issue(Role::kRollout, "rollout-1")), "rollout-2")), "WRONG_ID");
  EXPECT_EQ(Seal(Load(Issue(Role::kRollout, "*")), "rollout-2"), absl::OkStatus());
  EXPECT_EQ(ReasonOf(Seal(Load(Issue(Role::kRollout, "*")), "../x")), "WRONG_ID");
}

TEST_F(CredentialsTest, AnotherDomainOfTheSameAuthorityIsDenied) {
  StartServer();
  // The client would not believe the server either, so it is given the server's domain to check.
  const auto peer = IssueUri("other", "spiffe://other/sluice/rollout/rollout-1", authority_);
  grpc::Service* const services[] = {&queue_};
  const auto other = *Server::Start({.credentials = Load(peer)}, services);
  const auto channel = *Connect(other->address(), {Role::kRollout},
                                {.credentials = Load(Issue(Role::kRollout, "rollout-1"))});

  const absl::Status status = SealOver(*channel, "rollout-1");

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to the domain 'other'"));
}

TEST_F(CredentialsTest, WithoutACertificateOfTheAuthorityThereIsNoConnection) {
  StartServer();
  const pki::KeyPair foreign = MakeAuthority();
  const std::string uri = IdentityUri("test", {Role::kRollout, "rollout-1"});
  // It trusts the server, but the server does not trust it.
  const std::string dir = IssueUri("foreign", uri, foreign);
  ASSERT_TRUE(pki::WriteTlsDir(dir, {pki::ReadTlsDir(dir, absl::Now())->pair,
                                     absl::StrCat(foreign.certificate, authority_.certificate)})
                  .ok());

  EXPECT_EQ(Seal(Load(dir), "rollout-1").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Seal(nullptr, "rollout-1").code(), absl::StatusCode::kUnavailable) << "without TLS";
  EXPECT_EQ(queue_.last_caller(), "");
}

TEST_F(CredentialsTest, AnExpiredCertificateIsRefusedAtBothEnds) {
  StartServer();
  const std::string dir =
      IssueUri("expired", IdentityUri("test", {Role::kRollout, "rollout-1"}), authority_);
  const std::shared_ptr<const Credentials> credentials = Load(dir);
  IssueUri("expired", IdentityUri("test", {Role::kRollout, "rollout-1"}), authority_,
           -absl::Hours(1));

  EXPECT_EQ(Seal(credentials, "rollout-1").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(Credentials::Load(dir).status()), "EXPIRED");
  EXPECT_LT(credentials->ReadExpiry(), absl::Now());
}

TEST_F(CredentialsTest, AChannelRefusesAServerOfAnotherRole) {
  StartServer();

  const absl::Status status =
      Seal(Load(Issue(Role::kRollout, "rollout-1")), "rollout-1", {Role::kController});

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("it is queue 'queue-0'; wanted: controller"));
}

TEST_F(CredentialsTest, ACertificateWithoutAnIdentityCannotBeLoaded) {
  EXPECT_EQ(ReasonOf(Credentials::Load(IssueUri("x", "https://somewhere", authority_)).status()),
            "BAD_IDENTITY");
}

TEST_F(CredentialsTest, WithoutCredentialsOnlyLoopbackServes) {
  grpc::Service* const services[] = {&queue_};
  EXPECT_EQ(ReasonOf(Server::Start({.address = "0.0.0.0:0"}, services).status()), "NOT_LOOPBACK");
  EXPECT_TRUE(
      Server::Start({.address = "0.0.0.0:0", .credentials = Load(Issue(Role::kQueue, "queue-0"))},
                    services)
          .ok());
}

// The server closes connections all the time, so that new ones need the new files.
TEST_F(CredentialsTest, CertificatesReplacedUnderLoadFailNoCall) {
  StartServer(/*connection_age=*/absl::Milliseconds(200));
  const std::string dir = Issue(Role::kRollout, "rollout-1");
  const auto channel = *Connect(server_->address(), {Role::kQueue}, {.credentials = Load(dir)});
  std::atomic<bool> done = false;
  std::atomic<int> calls = 0, failed = 0;
  std::thread caller([&] {
    for (; !done; ++calls) {
      queue::v1::SealRequest request;
      request.mutable_call()->mutable_job()->set_worker("rollout-1");
      queue::v1::SealResponse response;
      if (!Call(*channel, request, &response, {.give_up = absl::Seconds(30)}).ok()) ++failed;
    }
  });

  for (int i = 0; i < 3; ++i) {
    Issue(Role::kQueue, "queue-0");
    Issue(Role::kRollout, "rollout-1");
    const std::string issued = pki::ReadTlsDir(dir, absl::Now())->pair.certificate;
    EXPECT_TRUE(queue_.AwaitCertificate(issued, absl::Seconds(30))) << i;
  }
  done = true;
  caller.join();

  EXPECT_EQ(failed, 0) << "of " << calls;
}

}  // namespace
}  // namespace sluice::rpc
