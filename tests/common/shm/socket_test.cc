#include "common/shm/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
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

// Connects to the listener `name` and sends `bytes` with the descriptor `fd` twice, which
// Socket::Send() never does.
Fd SendTwoDescriptors(const std::string& name, absl::string_view bytes, int fd) {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);

  const int fds[2] = {fd, fd};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = {};
  iovec packet = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &packet;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(fds));
  std::memcpy(CMSG_DATA(head), fds, sizeof(fds));
  EXPECT_EQ(sendmsg(socket.get(), &message, 0), static_cast<ssize_t>(bytes.size()));
  return socket;
}

TEST(SocketTest, NoDescriptorStaysOpenOfAPacketThatBringsTwo) {
  for (const char* bytes : {"two", ""}) {
    SCOPED_TRACE(bytes);
    auto listening = Socket::Listen(Name("two"));
    ASSERT_TRUE(listening.ok()) << listening.status();
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    const Fd reads(ends[0]);

    {
      const Fd writes(ends[1]);
      const Fd sender = SendTwoDescriptors(Name("two"), bytes, writes.get());
      auto there = listening->Accept();
      ASSERT_TRUE(there.ok()) << there.status();
      const auto got = there->Receive(absl::Seconds(10));
      EXPECT_EQ(got.ok(), *bytes != '\0') << got.status();
      if (got.ok()) {
        EXPECT_FALSE(got->fd.valid());
      }
    }

    // The pipe is at its end once no descriptor of its writing end is open.
    char byte = 0;
    EXPECT_EQ(read(reads.get(), &byte, 1), 0);
  }
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
