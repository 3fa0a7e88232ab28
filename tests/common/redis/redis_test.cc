#include "common/redis/redis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::redis {
namespace {
using integration::RedisServer;
using testing::HasSubstr;

TEST(RedisUrlTest, HostPortAndDatabaseAreRead) {
  EXPECT_EQ(ParseUrl("rediss://cache")->str(), "cache:6379/0");
  EXPECT_EQ(ParseUrl("rediss://10.0.0.1:7000/3")->str(), "10.0.0.1:7000/3");
  EXPECT_EQ(ParseUrl("redis://[::1]:7000/")->str(), "[::1]:7000/0");
  EXPECT_EQ(ParseUrl("redis://[::1]")->host, "::1");
  EXPECT_TRUE(ParseUrl("rediss://cache")->tls);
  EXPECT_FALSE(ParseUrl("redis://localhost")->tls);
}

TEST(RedisUrlTest, AnythingElseIsRefusedByName) {
  for (const char* url : {"", "cache", "http://cache", "redis://", "redis://:1",
                          "rediss://cache:", "rediss://cache:0", "rediss://cache:65536",
                          "rediss://cache:x", "rediss://cache/-1", "rediss://cache/x",
                          "redis://[::1", "redis://[::1]x", "rediss://user:word@cache"}) {
    EXPECT_EQ(ReasonOf(ParseUrl(url).status()), "BAD_URL") << url;
  }

  EXPECT_THAT(ParseUrl("rediss://:hush@cache").status().message(), testing::Not(HasSubstr("hush")));
}

TEST(RedisUrlTest, AnotherHostIsReachedByTlsAlone) {
  for (const char* url : {"redis://cache", "redis://10.0.0.1:7000/3", "redis://[2001:db8::1]"}) {
    const absl::Status refused = ParseUrl(url).status();
    EXPECT_EQ(ReasonOf(refused), "NOT_LOOPBACK") << url;
    EXPECT_EQ(DetailOf(refused).catalogue, "SLUICE-AUTH-0020");
  }
  EXPECT_THAT(DetailOf(ParseUrl("redis://10.0.0.1:7000/3").status()).hint,
              HasSubstr("rediss://10.0.0.1:7000/3"));
}

TEST(SentinelUrlTest, SentinelsMasterAndDatabaseAreRead) {
  const MasterSource source = *ParseMasterUrl("rediss+sentinel://a,10.0.0.1:7000,[::1]:7001/m.1/3");
  EXPECT_EQ(source.str(), "m.1 at the Sentinels a:26379, 10.0.0.1:7000, [::1]:7001");
  EXPECT_EQ(source.name, "m.1");
  EXPECT_EQ(source.redis.db, 3);
  EXPECT_TRUE(source.redis.tls);
  EXPECT_TRUE(source.sentinels[0].tls);
  EXPECT_EQ(ParseMasterUrl("redis+sentinel://127.0.0.1/m")->redis.db, 0);
  EXPECT_TRUE(ParseMasterUrl("rediss://cache:1/2")->sentinels.empty());
  EXPECT_EQ(ParseMasterUrl("rediss://cache:1/2")->str(), "cache:1/2");
}

TEST(SentinelUrlTest, AnythingElseIsRefusedByName) {
  std::string many = "rediss+sentinel://a";
  for (int i = 0; i < 15; ++i) many += absl::StrCat(",a", i);
  for (const std::string& url :
       {std::string("redis+sentinel://"), std::string("redis+sentinel://127.0.0.1"),
        std::string("redis+sentinel://127.0.0.1/"), std::string("redis+sentinel://127.0.0.1/m/x"),
        std::string("redis+sentinel://127.0.0.1/m/0/1"), std::string("redis+sentinel://,::1/m"),
        std::string("rediss+sentinel://a:0/m"), std::string("rediss+sentinel://:hush@a/m"),
        std::string("sentinel://a/m"), many + "/m"}) {
    EXPECT_EQ(ReasonOf(ParseMasterUrl(url).status()), "BAD_URL") << url;
  }
  const absl::Status refused = ParseMasterUrl("redis+sentinel://127.0.0.1,10.0.0.1/m").status();
  EXPECT_EQ(ReasonOf(refused), "NOT_LOOPBACK");
  EXPECT_THAT(refused.message(), HasSubstr("the Sentinel at 10.0.0.1"));
  EXPECT_EQ(ReasonOf(ParseUrl("redis+sentinel://127.0.0.1/m").status()), "BAD_URL");
}

// Twice the same would make one cut-off Sentinel a majority.
TEST(SentinelUrlTest, ASentinelThatIsNamedTwiceIsRefused) {
  for (const char* hosts : {"a,b,a", "a,b,A:26379", "[::1],[::1]:26379"}) {
    const absl::Status refused =
        ParseMasterUrl(absl::StrCat("rediss+sentinel://", hosts, "/m")).status();
    EXPECT_EQ(ReasonOf(refused), "BAD_URL") << hosts;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("26379 twice"));
  }
  EXPECT_TRUE(ParseMasterUrl("rediss+sentinel://a,a:26380,b/m").ok());
}

TEST(RedisEndpointTest, ThePasswordIsReadFromItsFileWithoutTheLastNewline) {
  const std::string file = testing::TempDir() + "/redis_password";
  ASSERT_TRUE(WriteFileAtomic(file, "hush\n").ok());
  EXPECT_EQ(MakeEndpoint({.url = "redis://127.0.0.1", .password_file = file})->password.Reveal(),
            "hush");

  ASSERT_TRUE(WriteFileAtomic(file, "hush\nhush\n").ok());
  EXPECT_EQ(ReasonOf(MakeEndpoint({.url = "redis://127.0.0.1", .password_file = file}).status()),
            "BAD_PASSWORD");
  EXPECT_TRUE(absl::IsNotFound(
      MakeEndpoint({.url = "redis://127.0.0.1", .password_file = file + ".none"}).status()));
}

TEST(RedisEndpointTest, ACaFileNeedsTlsAndMustBeThere) {
  const std::string file = testing::TempDir() + "/redis_ca.crt";
  ASSERT_TRUE(WriteFileAtomic(file, "any").ok());
  EXPECT_EQ(ReasonOf(MakeEndpoint({.url = "redis://127.0.0.1", .ca_file = file}).status()),
            "NO_TLS");
  EXPECT_TRUE(absl::IsNotFound(
      MakeEndpoint({.url = "rediss://127.0.0.1", .ca_file = file + ".none"}).status()));
}

TEST(RedisTest, CommandsGoTogetherAndEachHasItsAnswer) {
  const auto server = RedisServer::Start();
  ASSERT_NE(server, nullptr);
  Connection connection(server->endpoint());
  ASSERT_TRUE(connection.Connect().ok());

  const std::string binary("\0\r\n\xff", 4);
  const std::vector<Command> commands = {{"SET", "a", binary}, {"GET", "a"},
                                         {"GET", "none"},      {"INCR", "n"},
                                         {"LPUSH", "a", "x"},  {"MGET", "a", "none"}};
  const auto replies = connection.Run(commands);
  ASSERT_TRUE(replies.ok()) << replies.status();

  EXPECT_EQ((*replies)[1].text, binary);
  EXPECT_EQ((*replies)[2].kind, Reply::Kind::kNil);
  EXPECT_EQ((*replies)[3].number, 1);
  EXPECT_EQ((*replies)[4].kind, Reply::Kind::kError);
  EXPECT_THAT((*replies)[4].text, testing::StartsWith("WRONGTYPE"));
  ASSERT_EQ((*replies)[5].list.size(), 2u);
  EXPECT_EQ((*replies)[5].list[0].text, binary);
}

TEST(RedisTest, APasswordIsNeededAndMustBeRight) {
  const auto server = RedisServer::Start({.password = "secret"});
  ASSERT_NE(server, nullptr);
  for (const char* password : {"", "wrong", "secret"}) {
    Endpoint endpoint = server->endpoint();
    endpoint.password = Secret(password);
    Connection connection(endpoint);
    EXPECT_EQ(connection.Connect().ok(), std::string(password) == "secret") << password;
  }
}

TEST(RedisTest, AServerThatIsGoneIsUnavailableAndMayComeBack) {
  const auto server = RedisServer::Start();
  ASSERT_NE(server, nullptr);
  Connection connection(server->endpoint());
  ASSERT_TRUE(connection.Connect().ok());
  server->Kill();
  const Command ping = {"PING"};

  EXPECT_TRUE(absl::IsUnavailable(connection.Run({&ping, 1}).status()));
  EXPECT_TRUE(absl::IsUnavailable(connection.Run({&ping, 1}).status()));
  EXPECT_TRUE(absl::IsUnavailable(connection.Connect()));
  ASSERT_TRUE(server->Restart().ok());
  ASSERT_TRUE(connection.Connect().ok());
  EXPECT_TRUE(connection.Run({&ping, 1}).ok());
}

TEST(RedisTest, AStoppedServerEndsAWaitByItsTimeoutOrByBreak) {
  const auto server = RedisServer::Start();
  ASSERT_NE(server, nullptr);
  const Command ping = {"PING"};
  Connection brief(server->endpoint(), absl::Milliseconds(50)),
      patient(server->endpoint(), absl::Hours(1));
  ASSERT_TRUE(patient.Connect().ok());

  // On a busy machine the connection may take longer than 50 ms.
  while (!brief.Connect().ok()) {
  }

  server->Signal(SIGSTOP);
  EXPECT_TRUE(absl::IsUnavailable(brief.Run({&ping, 1}).status()));

  std::thread waiting([&] { EXPECT_FALSE(patient.Run({&ping, 1}).ok()); });
  patient.Break();
  waiting.join();
  EXPECT_FALSE(patient.Connect().ok());

  server->Signal(SIGCONT);
}

}  // namespace
}  // namespace sluice::redis
