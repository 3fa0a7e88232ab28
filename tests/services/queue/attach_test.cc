#include "services/queue/attach.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "services/queue/jobs.h"

namespace sluice::queue {
namespace {

// Lowers the limit of file descriptors while it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit lowered{.rlim_cur = limit, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
  }
  ~DescriptorLimit() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

TEST(AttachTest, WithoutADescriptorToEndItTheServerDoesNotStart) {
  JobTable jobs({});
  AttachServer server(&jobs);

  // Descriptors are given out from the lowest, so this leaves exactly one: enough to listen, or to
  // end the thread, but not for both.
  const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(lowest, 0);
  close(lowest);
  {
    const DescriptorLimit limit(lowest + 1);
    EXPECT_FALSE(server.Start("127.0.0.1:1").ok());
  }
  server.Stop();

  EXPECT_TRUE(absl::IsUnavailable(shm::Socket::Connect("sluice-queue/127.0.0.1:1").status()))
      << "nobody serves a client that connects";
}

TEST(AttachTest, AServerThatCannotWaitForItsClientsClosesTheirConnections) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer opens a pipe to check the type of an object, and "
                  "reports a fault if no descriptor is left";
#endif
  JobTable jobs({});
  AttachServer server(&jobs);
  ASSERT_EQ(server.Start("127.0.0.1:2"), absl::OkStatus());
  absl::StatusOr<shm::Socket> client = shm::Socket::Connect("sluice-queue/127.0.0.1:2");
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(client->Send("no request").ok());
  ASSERT_TRUE(client->Receive(absl::Minutes(1)).ok()) << "a refusal";

  // poll() fails if it is given more descriptors than the process may have.
  const DescriptorLimit limit(1);
  ASSERT_TRUE(client->Send("no request").ok());
  absl::Status received;
  while (received.ok()) received = client->Receive(absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(received)) << received;
  server.Stop();
}

}  // namespace
}  // namespace sluice::queue
