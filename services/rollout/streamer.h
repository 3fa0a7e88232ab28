#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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

// A group member that the queue has granted to this worker: one answer to sample.
struct Member {
  uint64_t request = 0;  // Id of its request in the engine.
  common::v1::TrajectoryRef ref;
  std::string lease;
  std::shared_ptr<const RenderedPrompt> prompt;
  bool put_prompt = false;  // The group's prompt is sent to the queue under this member's lease.
  bool generating = true;   // The engine samples the answer.
  PolicyVersion granted_under;  // The engine's version when the member was granted.
  float temperature = 1;
  Trajectory trajectory;
};

// Brings answers from the engine to the queue. It sends tokens in pieces while an answer grows, and
// after its end the messages (prompt and answer as text). Once the queue has acknowledged all of
// it, the member is sealed. What the queue has acknowledged is not lost if this process dies.
//
// Thread-safe. Owns one thread, `stream`. Only this thread uses the members; all other threads
// leave what they have in an inbox.
class Streamer {
 public:
  struct Options {
    std::string job_name;
    // Tokens are sent when there are `piece` of them, or when the first is piece_age old.
    size_t piece = 64;
    absl::Duration piece_age = absl::Seconds(2);
    // An engine that stands for so long gives its answers back; see SetStanding().
    absl::Duration stand = absl::Seconds(30);
    // Most bytes of sampled tokens (with log-probs and experts) that the queue has not
    // acknowledged. Above it the engine pauses.
    uint64_t most_unacked = 256 << 20;
    // The job rewards single tokens: the field answer_ends comes with the messages.
    bool answer_ends = false;
    // Number of the model's layers, and of experts per token and layer. The latter is 0 if the
    // model is no mixture of experts.
    int64_t layers = 0, experts = 0;
    // Called with each member that was sealed, on the stream thread. May be empty.
    std::function<void(const Member& member)> sealed;
    // Bytes that one token has in memory and in a piece.
    size_t token_bytes() const {
      return sizeof(int32_t) + sizeof(float) + sizeof(uint16_t) * layers * experts;
    }
  };

  // All pointers outlive the streamer. `failed` is called on the stream thread if a call to the
  // queue has failed for good; the thread ends then.
  Streamer(Options options, QueueClient* client, LeaseKeeper* leases, PutStream* puts,
           const PromptRenderer* renderer, const Metrics& metrics,
           std::function<void(absl::Status why)> failed);
  ~Streamer();  // Calls Stop().
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;

  // Starts the thread. Call it once, before the first AddMembers(). The streamer aborts requests in
  // `loop`, pauses it, and reads its statistics. `loop` outlives the thread.
  void Start(StepLoop* loop);

  // Takes members whose answers are to be brought to the queue.
  void AddMembers(std::vector<Member> members) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes drops, of which the queue will be told.
  void AddDrops(std::vector<queue::v1::DropItem> items) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes what a step did for the job's requests.
  void AddStep(StepEvents events) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes leases that the queue does not know any more. Their members are aborted.
  void AddLostLeases(const std::vector<std::string>& leases) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes hints that work on members is useless. These members are aborted.
  void AddCancelHints(std::vector<queue::v1::CancelHint> hints) ABSL_LOCKS_EXCLUDED(mu_);

  // Says whether other workers sample for the job. If they do, answers that are crowded out of the
  // engine (StepEvents::crowded_out) are given back to go on there.
  void SetHasOtherWorkers(bool has_others) { has_other_workers_ = has_others; }

  // Says whether the engine stands, because its weights are damaged. If that lasts for
  // Options::stand, and the job has other workers, its answers are given back to go on there.
  void SetStanding(bool stands) { stands_ = stands; }

  // Waits until fewer than `limit` members are being sampled and fewer than 4 x `limit` are not
  // sealed. Returns `limit` minus the number of those being sampled, or 0 after CloseRoom(), after
  // Stop() and after a failure.
  size_t AwaitRoom(size_t limit) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes AwaitRoom() return 0 from now on.
  void CloseRoom() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no member is left. Returns false if this takes longer than `timeout`, or after a
  // failure.
  bool AwaitEmpty(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives all unsent tokens to the PutStream. To get all of them, stop the step loop before. Does
  // nothing after a failure. Returns false if it takes longer than `timeout`, because a call to the
  // queue hangs.
  bool FlushPieces(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Joins the thread. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // Leases of the members that are not sealed. Call it after Stop().
  std::vector<std::string> leases() const;

 private:
  // A member that is not sealed yet.
  struct MemberState {
    Member member;
    bool prompt_put = false;  // The group's prompt was sent. Used if member.put_prompt is set.
    bool leaves = false;      // To be given back once the queue has all of its tokens.
    enum class Messages { kNone, kSent, kStored } messages = Messages::kNone;
    // Wall time of the engine's steps that have sampled tokens of this turn, and the number of the
    // last of them. An earlier attempt's part of it is not known.
    double seconds = 0;
    uint64_t last_step = 0;
    bool continued = false;        // An earlier attempt has sampled the first tokens.
    absl::Duration granted;        // Monotonic time of the grant.
    absl::Duration oldest_unsent;  // Monotonic time at which its first unsent token came.
  };
  // The queue's answer to one record.
  struct Ack {
    uint64_t request = 0;
    enum class What { kPrompt, kPiece, kMessages } what = What::kPiece;
    uint64_t end = 0;  // First position after the piece.
    absl::Status status;
    // After an error: the number of the member's tokens, prompt included, that the queue has.
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
  Inbox TakeInbox() ABSL_LOCKS_EXCLUDED(mu_);
  void TakeGranted(std::vector<Member> members);
  void TakeStep(const StepEvents& step);
  void TakeAck(const Ack& ack);
  void TakeCancelled(const queue::v1::CancelHint& hint);
  void Migrate(uint64_t request);
  void GiveBackIfStanding(absl::Duration now);
  absl::Status ReleaseLeaving();
  void EndGenerating(MemberState& state);
  // Forgets the member, and aborts its request.
  void Abandon(uint64_t request, AbortReason reason, absl::string_view why);
  // The same; `ended` counts the answer, unless it had ended before.
  void Forget(uint64_t request, AbortReason reason, absl::string_view why,
              const metrics::Counter& ended);
  // Sends the member again from `watermark` on, which is the number of its tokens (prompt included)
  // that the queue has.
  void SendFrom(uint64_t request, MemberState& state, uint64_t watermark);
  // Forgets the member, and enqueues a Drop with `reason` for the queue.
  void Drop(uint64_t request, absl::string_view reason);

  // These return false if the PutStream is full; a later scan sends the rest.
  bool SendPieces(uint64_t request, MemberState& state, bool all);
  bool Send(uint64_t request, common::v1::Record record, std::string payload, Ack::What what,
            uint64_t end);
  bool SendPrompt(uint64_t request, MemberState& state);
  bool SendMessages(uint64_t request, MemberState& state);
  absl::Status SealFinished();
  absl::Status SendDrops(std::vector<queue::v1::DropItem> items);
  void TakeSealAnswer(uint64_t request, const common::v1::Item& item);
  void SetCounts() ABSL_LOCKS_EXCLUDED(mu_);
  void UpdatePause() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateMetrics();

  const Options options_;
  QueueClient* const client_;
  LeaseKeeper* const leases_;
  PutStream* const puts_;
  const PromptRenderer* const renderer_;
  const Metrics metrics_;
  const std::function<void(absl::Status why)> failed_;
  StepLoop* loop_ = nullptr;

  // Used by the stream thread, except has_other_workers_ and stands_.
  absl::flat_hash_map<uint64_t, MemberState> members_;   // By request id.
  absl::flat_hash_map<std::string, uint64_t> by_lease_;  // Request id by lease.
  std::vector<uint64_t> unsent_;                         // Requests with something to send now.
  std::vector<uint64_t> leaving_;                        // Requests with MemberState::leaves.
  std::vector<uint64_t> finished_;                       // Requests that may be ready to be sealed.
  std::vector<queue::v1::DropItem> drops_;  // Drops that the queue was not told of yet.
  size_t generating_ = 0;                   // Number of members with `generating`.
  uint64_t steps_ = 0;                      // Number of TakeStep() calls.
  std::atomic<bool> has_other_workers_ = false, stands_ = false;
  // Monotonic time of the first scan at which the engine stood.
  std::optional<absl::Duration> stands_since_;
  absl::Duration last_scan_;  // Monotonic time of the last scan of all members.
  // The values that the last UpdateMetrics() saw. Counters are raised by the difference to them.
  StepLoop::Times seen_times_;
  EngineStats seen_stats_;

  mutable Mutex mu_;
  CondVar changed_;  // Signalled when the inbox changes.
  CondVar counted_;  // Signalled when a count, or a flag below, changes.
  Inbox inbox_ ABSL_GUARDED_BY(mu_);
  size_t granted_ ABSL_GUARDED_BY(mu_) = 0;         // Members that are not in members_ yet.
  size_t sampling_count_ ABSL_GUARDED_BY(mu_) = 0;  // Copy of generating_.
  size_t member_count_ ABSL_GUARDED_BY(mu_) = 0;    // Copy of members_.size().
  // Tokens without an acknowledgement: those of members_, and those in the inbox.
  size_t unacked_ ABSL_GUARDED_BY(mu_) = 0;
  size_t new_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  bool held_back_ ABSL_GUARDED_BY(mu_) = false;  // The step loop is paused.
  bool flushed_ ABSL_GUARDED_BY(mu_) = false;    // The last FlushPieces() is done.
  bool closed_ ABSL_GUARDED_BY(mu_) = false;     // CloseRoom() was called.
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;    // Stop() was called.
  bool ended_ ABSL_GUARDED_BY(mu_) = false;      // The thread has ended: nothing changes any more.

  std::thread thread_;
};

}  // namespace sluice::rollout
