#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_client.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tests/integration/harness/process.h"

namespace sluice::bench {

// Return the CPU seconds that a process, or this one, has used so far.
double CpuSeconds(pid_t pid);
double OwnCpuSeconds();
// Returns the seconds of a monotonic clock.
double WallSeconds();

inline constexpr char kBenchJob[] = "00112233445566778899aabbccddeeff";

// A sluice-queue process with one job, and the clients of a rollout and a trainer. Every failure
// aborts, because a benchmark cannot go on after one.
class QueueUnderTest {
 public:
  static constexpr uint32_t kMembers = 8;
  struct Options {
    bool shared_memory = false;
    std::string durability = "memory";
    uint32_t groups = 128;  // Groups of kMembers.
    uint64_t member_bytes = 1 << 20;
    // So many reward workers, w1 and so on, score the members. The answer to each row is 7. With
    // none there are no tasks, and the step has one group more, so that it does not end.
    int scorers = 0;
  };
  explicit QueueUnderTest(const Options& options);
  ~QueueUnderTest();  // Its data are removed with it.

  struct Member {
    common::v1::TrajectoryRef ref;
    std::string lease;
  };
  static std::vector<Member> MembersOf(const queue::v1::AdmitResponse& answer);
  // Takes `count` members, in the order of their groups.
  std::vector<Member> Admit(size_t count);
  // Drops the members, so that their memory and slots are free again.
  void Drop(const std::vector<Member>& members);
  // Gives the members back, so that they can be granted again as they are.
  void Release(const std::vector<Member>& members);
  // Puts a prompt of one token into each group and seals nothing. Members can take pieces only
  // after their prompt.
  void PutPrompts(const std::vector<Member>& members);

  // Waits until all members of the step are sealed and scored.
  void AwaitBatch();

  QueueClient* client() { return rollout_.get(); }
  const std::shared_ptr<rpc::Channel>& channel() const { return channel_; }
  pid_t pid() const { return process_->pid(); }

 private:
  void SetUpJob();

  const Options options_;
  std::string dir_;
  std::unique_ptr<integration::Process> process_;
  std::shared_ptr<rpc::Channel> channel_;
  std::unique_ptr<QueueClient> rollout_, trainer_;
};

}  // namespace sluice::bench
