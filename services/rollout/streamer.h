#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/prompt/prompt.h"
#include "services/rollout/core/engine/engine.h"
#include "services/rollout/core/step_loop/step_loop.h"
#include "services/rollout/core/trajectory/trajectory.h"
#include "services/rollout/metrics.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice {
class LeaseKeeper;
class PutStream;
class QueueClient;
struct PutOutcome;
}  // namespace sluice

namespace sluice::rollout {

// A member granted to this worker.
struct Member {
  uint64_t request = 0;  // Its id in the engine.
  common::v1::TrajectoryRef ref;
  std::string lease;
  std::shared_ptr<const RenderedPrompt> prompt;
  bool put_prompt = false;      // This member's lease carries the group's prompt to the queue.
  bool generating = true;       // False: the prefix is a whole answer already.
  PolicyVersion granted_under;  // What the engine held before.
  float temperature = 1;
  Trajectory trajectory;
};

// Takes answers from the engine to the queue: pieces as they grow, at the end the messages and the
// seal. What the queue has acknowledged survives this process.
//
// Thread-safe. Owns one thread, `stream`, which alone touches the members; everybody else leaves
// notes in its inbox.
class Streamer {
 public:
  struct Options {
    std::string job_name;
    size_t piece = 64;                            // Tokens that are sent at once, ..
    absl::Duration piece_age = absl::Seconds(2);  // .. or when the first of them is so old.
    // Bytes of tokens, log-probs and experts; beyond it no more is sampled.
    uint64_t most_unacked = 256 << 20;
    // In a mixture of experts: what a token goes through, `experts` of each layer.
    int64_t layers = 0, experts = 0;
    // The queue has all of it; from the stream thread. May be empty.
    std::function<void(const Member& member)> sealed;
    size_t token_bytes() const {
      return sizeof(int32_t) + sizeof(float) + sizeof(uint16_t) * layers * experts;
    }
  };

  // All outlive the streamer. `failed`: the work has ended for good; from the stream thread.
  Streamer(Options options, QueueClient* client, LeaseKeeper* leases, PutStream* puts,
           const PromptRenderer* renderer, const Metrics& metrics,
           std::function<void(absl::Status why)> failed);
  ~Streamer();  // Stop().
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;

  // Starts the thread; once, before the first grant. `loop`, where members are aborted and the
  // engine's numbers are read, outlives it.
  void Start(StepLoop* loop);

  void Granted(std::vector<Member> members) ABSL_LOCKS_EXCLUDED(mu_);
  // To be told to the queue.
  void Dropped(std::vector<queue::v1::DropItem> items) ABSL_LOCKS_EXCLUDED(mu_);
  void Stepped(StepEvents events) ABSL_LOCKS_EXCLUDED(mu_);
  void Lost(const std::vector<std::string>& leases) ABSL_LOCKS_EXCLUDED(mu_);
  void Cancelled(std::vector<queue::v1::CancelHint> hints) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether other workers sample for the job: then answers that crowd each other out of the engine
  // go on there.
  void SetOthers(bool others) { others_ = others; }

  // Waits until fewer than `limit` members are being sampled and fewer than 4 x `limit` are
  // unsealed; how many fewer. 0: stopped or draining.
  size_t AwaitRoom(size_t limit) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on AwaitRoom gives 0.
  void CloseRoom() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until all members are sealed, at most `timeout`.
  bool AwaitEmpty(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Hands all unsent tokens to the PutStream. To be called once the step loop has stopped.
  void FlushPieces() ABSL_LOCKS_EXCLUDED(mu_);
  // Joins the thread. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // Of the members that are not sealed; after Stop().
  std::vector<std::string> leases() const;

 private:
  struct Live {
    Member member;
    bool prompt_put = false;
    bool leaves = false;  // Is given back once the queue has all of it.
    enum class Messages { kNone, kSent, kStored } messages = Messages::kNone;
    absl::Duration oldest_unsent;  // Monotonic.
  };
  struct Ack {
    uint64_t request = 0;
    enum class What { kPrompt, kPiece, kMessages } what = What::kPiece;
    uint64_t end = 0;  // Position behind the piece.
    absl::Status status;
    uint64_t watermark = 0;
  };
  struct Inbox {
    std::vector<Member> granted;
    std::vector<StepEvents> steps;
    std::vector<Ack> acks;
    std::vector<std::string> lost;
    std::vector<queue::v1::CancelHint> cancelled;
    std::vector<queue::v1::DropItem> drops;
    bool flush = false;
    bool empty() const {
      return granted.empty() && steps.empty() && acks.empty() && lost.empty() &&
             cancelled.empty() && drops.empty() && !flush;
    }
  };

  void Run();
  Inbox Take() ABSL_LOCKS_EXCLUDED(mu_);
  void TakeGranted(std::vector<Member> members);
  void TakeStep(const StepEvents& step);
  void TakeAck(const Ack& ack);
  void TakeCancelled(const queue::v1::CancelHint& hint);
  void Migrate(uint64_t request);
  absl::Status ReleaseLeaving();
  void EndGenerating(Live& live);
  void Abandon(uint64_t request, AbortReason reason, absl::string_view why);
  // The queue has of the member, prompt included, what lies before `watermark`.
  void SendFrom(uint64_t request, Live& live, uint64_t watermark);
  void Drop(uint64_t request, absl::string_view reason);

  bool SendPieces(uint64_t request, Live& live, bool all);
  bool Send(uint64_t request, common::v1::Record record, std::string payload, Ack::What what,
            uint64_t end);
  bool SendPrompt(uint64_t request, Live& live);
  bool SendMessages(uint64_t request, Live& live);
  absl::Status SealFinished();
  absl::Status TellDrops(std::vector<queue::v1::DropItem> items);
  void Sealed(uint64_t request, const common::v1::Item& item);
  void SetCounts() ABSL_LOCKS_EXCLUDED(mu_);
  void HoldBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateMetrics();

  const Options options_;
  QueueClient* const client_;
  LeaseKeeper* const leases_;
  PutStream* const puts_;
  const PromptRenderer* const renderer_;
  const Metrics metrics_;
  const std::function<void(absl::Status why)> failed_;
  StepLoop* loop_ = nullptr;

  // Of the stream thread.
  absl::flat_hash_map<uint64_t, Live> live_;
  absl::flat_hash_map<std::string, uint64_t> by_lease_;
  std::vector<uint64_t> unsent_;    // Requests with something to send now.
  std::vector<uint64_t> leaving_;   // Requests that are to be given back.
  std::vector<uint64_t> finished_;  // Requests that may be ready to be sealed.
  std::vector<queue::v1::DropItem> drops_;
  size_t generating_ = 0;
  std::atomic<bool> others_ = false;
  absl::Duration last_scan_;  // Monotonic; of ages and metrics.
  StepLoop::Times seen_times_;
  EngineStats seen_stats_;

  mutable Mutex mu_;
  CondVar changed_;  // The inbox.
  CondVar counted_;  // The counts.
  Inbox inbox_ ABSL_GUARDED_BY(mu_);
  size_t granted_ ABSL_GUARDED_BY(mu_) = 0;  // Members in the inbox.
  size_t sampling_count_ ABSL_GUARDED_BY(mu_) = 0;
  size_t live_count_ ABSL_GUARDED_BY(mu_) = 0;
  size_t unacked_ ABSL_GUARDED_BY(mu_) = 0;     // Tokens of the members; ..
  size_t new_tokens_ ABSL_GUARDED_BY(mu_) = 0;  // .. and those in the inbox.
  bool held_back_ ABSL_GUARDED_BY(mu_) = false;
  bool flushed_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace sluice::rollout
