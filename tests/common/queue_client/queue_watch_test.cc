#include "common/queue_client/queue_watch.h"

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "tests/common/queue_client/fake_queue.h"

namespace sluice {
namespace {

queue::v1::WatchResponse Version(int64_t version) {
  queue::v1::WatchResponse change;
  change.set_version(version);
  return change;
}

TEST(QueueWatchTest, ChangesComeInOrderBeatsDoNotAndABreakIsHealed) {
  Served served;
  served.queue.on_watch = [](FakeQueue::WatchStream& stream, int number) {
    if (number == 0) {
      stream.Send(Version(3));
      stream.Send({});  // A heartbeat.
      stream.Send(Version(4));
      return stream.End(absl::UnavailableError("restarting"));
    }
    stream.Send(Version(5));  // The stream stays open.
  };

  served.Start();
  Handed<int64_t> versions;
  QueueWatch watch(served.client.get(), {.on_change = [&](const queue::v1::WatchResponse& change) {
                     versions.Push(change.version());
                   }});

  EXPECT_EQ(versions.Pop(), 3);
  EXPECT_EQ(versions.Pop(), 4);
  EXPECT_EQ(versions.Pop(), 5);
}

TEST(QueueWatchTest, AFencedWorkerIsToldSo) {
  Served served;
  served.queue.on_watch = [](FakeQueue::WatchStream& stream, int) {
    stream.End(Error(absl::StatusCode::kAborted, "FENCED", "incarnation 3 < 4"));
  };
  served.Start();
  Handed<absl::Status> failed;
  QueueWatch watch(served.client.get(), {.on_change = [](const queue::v1::WatchResponse&) {},
                                         .on_failed = [&](absl::Status why) { failed.Push(why); }});

  EXPECT_EQ(ReasonOf(failed.Pop()), "FENCED");
}

}  // namespace
}  // namespace sluice
