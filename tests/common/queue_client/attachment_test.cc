#include "common/queue_client/attachment.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice {
namespace {

constexpr uint64_t kBytes = 4096;

// The queue's end of the socket: it answers each request with a new segment, and the second one
// only when told to.
class SlowQueue {
 public:
  explicit SlowQueue(const std::string& address)
      : listening_(shm::Socket::Listen("sluice-queue/" + address)) {
    EXPECT_TRUE(listening_.ok()) << listening_.status();
    if (listening_.ok()) thread_ = std::thread([this] { Serve(); });
  }
  ~SlowQueue() {
    if (thread_.joinable()) thread_.join();
  }

  std::latch asked{1};   // The second request has come.
  std::latch answer{1};  // It may be answered.

 private:
  void Serve() {
    pollfd ready = {listening_->fd(), POLLIN, 0};
    while (poll(&ready, 1, -1) < 0) {
    }
    auto client = listening_->Accept();
    ASSERT_TRUE(client.ok()) << client.status();

    EXPECT_TRUE(client->Receive(absl::Seconds(60)).ok());
    Send(&*client, shm::Access::kEveryone);
    EXPECT_TRUE(client->Receive(absl::Seconds(60)).ok());
    asked.count_down();
    answer.wait();
    Send(&*client, shm::Access::kOwner);
  }
  static void Send(shm::Socket* client, shm::Access access) {
    const auto segment = shm::Segment::Create("attachment-test", kBytes, access, false);
    ASSERT_TRUE(segment.ok()) << segment.status();
    queue::v1::AttachResponse response;
    response.set_session(std::string(16, 's'));
    response.set_bytes(kBytes);
    EXPECT_TRUE(client->Send(response.SerializeAsString(), segment->fd()).ok());
  }

  absl::StatusOr<shm::Socket> listening_;
  std::thread thread_;
};

TEST(AttachmentTest, ItsBufferIsUsedWhileTheQueueTakesItsTimeToAnswer) {
  const std::string address = absl::StrCat("attachment-test-", getpid());
  SlowQueue queue(address);
  auto attached = Attachment::Attach(address, {});
  ASSERT_TRUE(attached.ok()) << attached.status();
  Attachment& attachment = **attached;

  absl::Status mapped;
  std::vector<std::shared_ptr<const shm::Segment>> segments;
  std::thread reader([&] {
    const shm::Slice slice = {.segment = 1, .block = 0, .offset = 64, .length = 16};
    mapped = attachment.Map({slice}, &segments);
  });
  queue.asked.wait();

  // Were these to wait for Map(), it would give up before its answer is sent.
  const auto slice = attachment.Allocate(100);
  if (slice) attachment.Free(*slice);
  queue.answer.count_down();
  reader.join();

  EXPECT_TRUE(slice.has_value());
  EXPECT_TRUE(mapped.ok()) << mapped;
  EXPECT_EQ(segments.size(), 1u);
}

}  // namespace
}  // namespace sluice
