#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/queue/arena.h"
#include "services/queue/convert.h"
#include "services/queue/core/job.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf
namespace sluice::fuzz {

// The calls of the queue's service, and the other events that a job may see.
enum class Op : uint8_t {
  kSetJob,
  kAdmit,
  kPut,
  kGet,
  kSeal,
  kDrop,
  kLeaseTasks,
  kRenew,
  kRelease,
  kAcquireBatch,
  kApply,
  kAdvanceVersion,
  kDurable,
  kRestore,
  kRetask,
  kStats,
  kPeek,
  kWatch,
  kClock,    // Time passes: up to 3 bytes, little-endian, times 10 ms.
  kForget,   // The client of the oldest parked call leaves.
  kDisk,     // The space on the disk. A byte: ok, low, full.
  kMemory,   // A byte: MiB that the job may reserve.
  kRestart,  // The queue restarts and loads the job's dump.
  kCount,
};

// Calls one job through the messages of the queue's service, without sockets, threads or a real
// clock. Its input is bytes, and it checks the job after each step. If a message lacks the caller
// or the checksums, they are filled in as a correct client would. A `bytes` field of one byte with
// value n stands for the nth id that an answer contained (Ref), so that a mutated input still names
// things that exist.
//
// A broken promise ends the process:
//   - an error with the code INTERNAL;
//   - an answer that is missing or comes twice;
//   - a broken invariant of the state (Job::Violations), or a ledger that does not balance;
//   - JSON of Peek that does not parse;
//   - a difference between the job and its twin, which replays what the log would return: another
//     answer or another state.
class QueueCalls {
 public:
  QueueCalls();
  ~QueueCalls();

  void Do(Op op, absl::string_view bytes);
  void CheckAll();

  // The answer to the last call; null if it parked or failed. Code that makes inputs uses this.
  const google::protobuf::Message* answer() const { return answer_.get(); }
  // The byte that stands for `id`, which an answer must have given.
  std::string Ref(const std::string& id) const;
  const queue::Job* job() const { return job_.get(); }

 private:
  using OnReply = std::function<void(const queue::Reply&)>;

  template <typename Request, typename Response, typename Result>
  void Unary(absl::string_view bytes, const char* worker);
  void SetJob(absl::string_view bytes);
  void Put(absl::string_view bytes);
  void Get(absl::string_view bytes);
  void Read(Op op, absl::string_view bytes);
  void PassTime(uint64_t ticks);
  void Restart();

  void CompleteRequest(google::protobuf::Message* request, const char* worker);
  void SubstituteIds(google::protobuf::Message* message);
  void CollectIds(const google::protobuf::Message& message);
  void FillChecksums(queue::v1::PutMessage* message) const;
  void Send(const queue::Caller& caller, queue::Input input, OnReply on_reply = {});
  void Step(const queue::Event& event);

  queue::Arena arena_{{.segment_bytes = 64 << 10, .ahead = false}};
  queue::Spec spec_;
  std::map<std::string, queue::RecordReader> streams_;  // Streams of Put, by worker.
  std::unique_ptr<queue::Job> job_, twin_;              // Null before SetJob.
  queue::Instant now_ = absl::Seconds(1000);
  uint32_t incarnation_ = 1;
  uint64_t calls_ = 0, steps_ = 0;
  std::map<uint64_t, OnReply> waiting_;              // The parked calls.
  std::vector<std::string> ids_, hashes_, cursors_;  // In the order in which answers gave them.
  std::unique_ptr<google::protobuf::Message> answer_;
};

}  // namespace sluice::fuzz
