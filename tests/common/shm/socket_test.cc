#include "common/shm/socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::shm {
namespace {

std::string Name(const char* test) {
  return absl::StrCat("sluice-socket-test/", getpid(), "/", test);
}

TEST(SocketTest, APacketBringsItsBytesAndADescriptor) {
  auto listening = Socket::Listen(Name("packet"));
  ASSERT_TRUE(listening.ok()) << listening.status();
  auto here = Socket::Connect(Name("packet"));
  ASSERT_TRUE(here.ok()) << here.status();
  auto there = listening->Accept();
  ASSERT_TRUE(there.ok()) << there.status();
  auto segment = Segment::Create("test", 4096, Access::kEveryone, false);
  ASSERT_TRUE(segment.ok());
  std::strcpy(segment->data(), "shared");

  ASSERT_TRUE(here->Send("one", segment->fd()).ok());
  ASSERT_TRUE(here->Send("two").ok());

  auto one = there->Receive(absl::Seconds(10));
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->bytes, "one");

  auto mapped = Segment::Map(std::move(one->fd), 4096, false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_STREQ(mapped->data(), "shared");

  const auto two = there->Receive(absl::Seconds(10));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->bytes, "two");
  EXPECT_FALSE(two->fd.valid());
  EXPECT_TRUE(absl::IsDeadlineExceeded(there->Receive(absl::ZeroDuration()).status()));
}

TEST(SocketTest, EachEndSeesThatTheOtherIsGone) {
  auto listening = Socket::Listen(Name("gone"));
  ASSERT_TRUE(listening.ok()) << listening.status();
  auto here = Socket::Connect(Name("gone"));
  ASSERT_TRUE(here.ok());
  EXPECT_FALSE(here->IsClosed());

  {
    ASSERT_TRUE(listening->Accept().ok());
  }

  EXPECT_TRUE(here->IsClosed());
  EXPECT_TRUE(absl::IsUnavailable(here->Receive(absl::Seconds(10)).status()));
  EXPECT_TRUE(absl::IsUnavailable(here->Send("into the void")));
}

TEST(SocketTest, ANameIsListenedOnOnceAndEndsWithItsListener) {
  {
    const auto first = Socket::Listen(Name("once"));
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE(absl::IsAlreadyExists(Socket::Listen(Name("once")).status()));
  }

  EXPECT_TRUE(absl::IsUnavailable(Socket::Connect(Name("once")).status()));
  EXPECT_TRUE(Socket::Listen(Name("once")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Socket::Listen(std::string(200, 'x')).status()));
}

}  // namespace
}  // namespace sluice::shm
