// TLS against a real redis-server, whose certificate is right or wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/pki/tls_dir.h"
#include "common/redis/redis.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::redis {
namespace {
using integration::RedisServer;
using testing::HasSubstr;

class RedisTlsTest : public testing::Test {
 protected:
  pki::Validity Days(int from, int until) const {
    return {now_ + from * absl::Hours(24), now_ + until * absl::Hours(24)};
  }

  // A folder with a certificate for `hosts` that a new authority has signed.
  std::string MakeTlsDir(const std::string& name, std::vector<std::string> hosts,
                         const pki::Validity& validity) {
    const pki::KeyPair authority = *pki::MakeAuthority(
        {.name = "authority of " + name, .uri = "spiffe://test"}, Days(-10, 10));
    const absl::StatusOr<pki::KeyPair> pair = pki::IssueCertificate(
        authority, {.name = "redis", .uri = "spiffe://test/redis", .hosts = std::move(hosts)},
        validity);
    // Tests run beside each other, each in a process of its own.
    const std::string dir =
        absl::StrCat(testing::TempDir(), "/redis_tls_", name, "_", ToHex(RandomId16()));
    EXPECT_TRUE(pki::WriteTlsDir(dir, {.pair = *pair, .authority = authority.certificate}).ok());
    return dir;
  }

  std::unique_ptr<RedisServer> StartServer(std::vector<std::string> hosts,
                                           const pki::Validity& validity) {
    return RedisServer::Start(
        {.password = "hush", .tls_dir = MakeTlsDir("server", std::move(hosts), validity)});
  }

  const absl::Time now_ = absl::Now();
};

TEST_F(RedisTlsTest, CommandsGoThroughWhateverTheirSize) {
  const auto server = StartServer({"127.0.0.1"}, Days(-1, 1));
  ASSERT_NE(server, nullptr);
  Connection connection(server->endpoint(), absl::Seconds(30));
  ASSERT_TRUE(connection.Connect().ok());
  // More than the buffers of both sockets hold, in both directions.
  const std::string large(24 << 20, 'x');
  const std::vector<Command> commands = {
      {"SET", "a", large}, {"GET", "a"}, {"STRLEN", "a"}, {"GET", "none"}};

  const auto replies = connection.Run(commands);

  ASSERT_TRUE(replies.ok()) << replies.status();
  EXPECT_EQ((*replies)[1].text, large);
  EXPECT_EQ((*replies)[2].number, 24 << 20);
  EXPECT_EQ((*replies)[3].kind, Reply::Kind::kNil);
}

TEST_F(RedisTlsTest, AHostNameIsCheckedAsAnAddressIs) {
  const auto server = StartServer({"localhost"}, Days(-1, 1));
  ASSERT_NE(server, nullptr);
  Endpoint endpoint = server->endpoint();
  endpoint.host = "localhost";
  EXPECT_TRUE(Connection(endpoint, integration::kLong).Connect().ok());

  endpoint.host = "127.0.0.1";
  const absl::Status refused = Connection(endpoint, integration::kLong).Connect();

  EXPECT_EQ(ReasonOf(refused), "BAD_CERTIFICATE");
  EXPECT_EQ(DetailOf(refused).catalogue, "SLUICE-AUTH-0021");
  EXPECT_THAT(refused.message(), HasSubstr("IP address mismatch"));
}

TEST_F(RedisTlsTest, AnotherAuthorityIsNotBelieved) {
  const auto server = StartServer({"127.0.0.1"}, Days(-1, 1));
  ASSERT_NE(server, nullptr);
  const std::string other = MakeTlsDir("other", {"127.0.0.1"}, Days(-1, 1));
  Endpoint endpoint = server->endpoint();
  endpoint.ca_file = absl::StrCat(other, "/", pki::kAuthorityFile);
  EXPECT_EQ(ReasonOf(Connection(endpoint, integration::kLong).Connect()), "BAD_CERTIFICATE");

  endpoint.ca_file = "";  // The system's authorities have not signed it either.
  EXPECT_EQ(ReasonOf(Connection(endpoint, integration::kLong).Connect()), "BAD_CERTIFICATE");

  endpoint.ca_file = absl::StrCat(other, "/", pki::kKeyFile);
  EXPECT_EQ(ReasonOf(Connection(endpoint, integration::kLong).Connect()), "BAD_PEM");
}

TEST_F(RedisTlsTest, AnExpiredCertificateIsNotAccepted) {
  const auto server = StartServer({"127.0.0.1"}, Days(-2, -1));
  ASSERT_NE(server, nullptr);
  const absl::Status refused = Connection(server->endpoint(), integration::kLong).Connect();
  EXPECT_EQ(ReasonOf(refused), "BAD_CERTIFICATE");
  EXPECT_THAT(refused.message(), HasSubstr("expired"));
}

TEST_F(RedisTlsTest, AServerWithoutTlsIsUnavailable) {
  const auto server = RedisServer::Start();
  ASSERT_NE(server, nullptr);
  Endpoint endpoint = server->endpoint();
  endpoint.tls = true;
  EXPECT_TRUE(absl::IsUnavailable(Connection(endpoint).Connect()));
}

TEST_F(RedisTlsTest, AWaitEndsByItsTimeoutByBreakAndWhenTheServerDies) {
  const auto server = StartServer({"127.0.0.1"}, Days(-1, 1));
  ASSERT_NE(server, nullptr);
  const Command ping = {"PING"};
  Connection brief(server->endpoint(), absl::Milliseconds(200)),
      patient(server->endpoint(), integration::kLong),
      doomed(server->endpoint(), integration::kLong);
  while (!brief.Connect().ok()) {  // It may take longer than 200 ms on a busy machine.
  }
  ASSERT_TRUE(patient.Connect().ok());
  ASSERT_TRUE(doomed.Connect().ok());

  server->Signal(SIGSTOP);
  EXPECT_TRUE(absl::IsUnavailable(brief.Run({&ping, 1}).status()));
  EXPECT_TRUE(absl::IsUnavailable(brief.Connect()));
  std::thread waiting([&] { EXPECT_FALSE(patient.Run({&ping, 1}).ok()); });
  patient.Break();
  waiting.join();

  std::thread dying([&] { EXPECT_TRUE(absl::IsUnavailable(doomed.Run({&ping, 1}).status())); });
  server->Kill();
  dying.join();
}

}  // namespace
}  // namespace sluice::redis
