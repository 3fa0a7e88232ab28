#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/redis/redis.h"
#include "services/queue/ledger_watch.h"

namespace sluice::queue {

// Copies the ledger of each job into a Redis stream, sluice:{<job id>}:ledger, for others to
// follow. The queue never reads the copy and never waits for it, whatever Redis does.
//
// The id of an entry is <queue incarnation>-<event>, so an entry that is sent twice is stored once.
// Its fields are: `kind` (accepted, dropped, applied, durable, restored); `version` (K, the version
// that the trainer holds); the ledger's counters by their names; `dropped.<reason>` if not 0;
// `hash` (hex); and for kind applied `batch`, the canonical bytes of batch K - 1, from which H(K)
// can be recomputed. `prev` is the id of the previous entry.
//
// An entry that has `gap` instead of `prev` says that earlier entries are missing, and why: `start`
// (a new run of the queue), `overflow` (Redis took entries too slowly; `missed` of them were given
// up) or `lost` (Redis no longer had them). Its counters include the missing entries. Streams are
// trimmed to about `entries` entries and expire some days after the job is freed.
//
// Thread-safe. Owns one thread, `mirror`, the only one that talks to Redis.
class LedgerMirror {
 public:
  struct Options {
    redis::Endpoint redis;
    absl::Duration timeout = absl::Seconds(2);  // Longest wait for an answer of Redis.
    // How often the mirror checks that Redis still has all entries.
    absl::Duration check = absl::Seconds(1);
    absl::Duration retry = absl::Seconds(1);  // Between tries to connect.
    // How long Stop() waits until waiting entries are sent.
    absl::Duration linger = absl::Seconds(1);
    absl::Duration keep = absl::Hours(7 * 24);  // How long a freed job's stream is kept.
    uint64_t entries = 100'000;                 // About how many entries a stream keeps.
    // Limit of the waiting entries of a job. Beyond it all but the newest are given up.
    uint64_t buffer_bytes = 8 << 20;
  };
  // Needs Redis 6.2 or later.
  explicit LedgerMirror(Options options);
  ~LedgerMirror();  // Calls Stop().

  // Notes an entry, which will be sent later. It is ignored if its id is not above that of the
  // newest noted entry of the job.
  void AddEntry(const std::string& job, uint64_t incarnation,
                std::shared_ptr<const LedgerEntry> entry) ABSL_LOCKS_EXCLUDED(mu_);
  // The job is freed: no more entries of it will come.
  void OnJobFreed(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);

  struct State {
    bool connected = false;
    uint64_t lag = 0;      // Entries that are noted but not in Redis yet.
    uint64_t dropped = 0;  // Entries that were given up; later entries include their changes.
  };
  State state() const ABSL_LOCKS_EXCLUDED(mu_);

  // Sends what waits for at most `linger`, then ends the thread. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  static std::string KeyOf(const std::string& job);

 private:
  struct Id {
    uint64_t incarnation = 0, event = 0;
    auto operator<=>(const Id&) const = default;
    std::string str() const;
  };
  struct Waiting {
    Id id;
    std::shared_ptr<const LedgerEntry> entry;
    uint64_t bytes = 0;
    const char* gap = nullptr;  // Why it does not follow the previous entry; null if it does.
    uint64_t missed = 0;        // Number of entries given up in this gap.
  };
  struct Stream {
    std::deque<Waiting> waiting;
    uint64_t bytes = 0;  // Size of `waiting`.
    Waiting newest;      // The entry that was noted last, whether it waits or not.
    Id written;          // Redis has all entries up to this one.
    Id sent;             // Redis may have all entries up to this one. written <= sent <= newest.id.
    std::string refused;  // Why Redis refuses entries of this stream; empty if it does not.
    bool freed = false;
  };
  // What one pass sends for one stream. It is gathered under the lock and sent without it.
  struct Plan {
    std::string job;
    std::vector<Waiting> entries;
    Id written;
    bool last = false;  // The job is freed, and these are its last entries.
  };

  void Loop();
  bool AwaitWork(bool up, Instant due) ABSL_LOCKS_EXCLUDED(mu_);  // False: the thread must end.
  absl::Status CompareStreams() ABSL_LOCKS_EXCLUDED(mu_);
  void CompareStream(const std::string& job, Stream& stream, const redis::Reply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SendEntries() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Plan> GatherPlans() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  redis::Command EntryOf(const Plan& plan, size_t place) const;
  void HandleReplies(const Plan& plan, const redis::Reply* replies)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MarkWritten(Stream& stream, const Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveUpWaiting(const std::string& job, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MarkLost(const std::string& job, Stream& stream, const Id& top)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetRefused(const std::string& job, Stream& stream, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetConnected(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  redis::Connection redis_;  // Used by the thread alone, except for Break().
  // The state that was logged last. Used by the thread alone.
  absl::StatusCode logged_ = absl::StatusCode::kUnknown;
  mutable Mutex mu_;
  CondVar changed_;
  std::map<std::string, Stream> streams_ ABSL_GUARDED_BY(mu_);  // By job id.
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // The thread has ended.
  std::thread thread_;
};

}  // namespace sluice::queue
