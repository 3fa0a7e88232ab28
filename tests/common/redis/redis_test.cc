#include "common/redis/redis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "tests/integration/harness/redis_server.h"

namespace sluice::redis {
namespace {
using integration::RedisServer;

TEST(RedisUrlTest, HostPortAndDatabaseAreRead) {
  EXPECT_EQ(ParseUrl("redis://cache")->str(), "cache:6379/0");
  EXPECT_EQ(ParseUrl("redis://10.0.0.1:7000/3")->str(), "10.0.0.1:7000/3");
  EXPECT_EQ(ParseUrl("redis://[::1]:7000/")->str(), "[::1]:7000/0");
  EXPECT_EQ(ParseUrl("redis://[::1]")->host, "::1");
}

TEST(RedisUrlTest, AnythingElseIsRefusedByName) {
  for (const char* url : {"", "cache", "rediss://cache", "redis://", "redis://:1",
                          "redis://cache:", "redis://cache:0", "redis://cache:65536",
                          "redis://cache:x", "redis://cache/-1", "redis://cache/x", "redis://[::1",
                          "redis://[::1]x", "redis://user:word@cache"}) {
    EXPECT_EQ(ParseUrl(url).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }

  EXPECT_THAT(ParseUrl("redis://:hush@cache").status().message(),
              testing::Not(testing::HasSubstr("hush")));
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
  const auto server = RedisServer::Start("secret");
  ASSERT_NE(server, nullptr);
  for (const char* password : {"", "wrong", "secret"}) {
    Endpoint endpoint = server->endpoint();
    endpoint.password = password;
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
