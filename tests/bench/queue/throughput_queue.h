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

// CPU seconds of a process, and of this one.
double CpuSeconds(pid_t pid);
double OwnCpuSeconds();
double WallSeconds();

// A sluice-queue process with one job, and a rollout's and a trainer's hands. Dies loudly: a
// benchmark has no other way.
class QueueUnderTest {
 public:
  static constexpr uint32_t kMembers = 8;
  struct Options {
    bool shared_memory = false;
    queue::v1::Durability durability = queue::v1::DURABILITY_MEMORY;
    uint32_t groups = 128;  // Of kMembers; the step has one more.
    uint64_t member_bytes = 1 << 20;
  };
  explicit QueueUnderTest(const Options& options);
  ~QueueUnderTest();  // Its data go with it.

  struct Member {
    common::v1::TrajectoryRef ref;
    std::string lease;
  };
  static std::vector<Member> MembersOf(const queue::v1::AdmitResponse& answer);
  // Takes as many members, in order of groups; there are `groups` of them and one more.
  std::vector<Member> Admit(size_t count);
  // Drops them, so that their memory and slots come back.
  void Drop(const std::vector<Member>& members);
  // Gives them back, to be granted again as they are.
  void Release(const std::vector<Member>& members);
  // Puts a prompt of one token into each group and seals nothing: members can take pieces behind
  // it.
  void PutPrompts(const std::vector<Member>& members);

  QueueClient* client() { return rollout_.get(); }
  pid_t pid() const { return process_->pid(); }

 private:
  void Begin();

  const Options options_;
  std::string dir_;
  std::unique_ptr<integration::Process> process_;
  std::shared_ptr<rpc::Channel> channel_;
  std::unique_ptr<QueueClient> rollout_, trainer_;
};

}  // namespace sluice::bench
