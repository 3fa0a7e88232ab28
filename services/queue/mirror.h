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
#include "services/queue/books.h"

namespace sluice::queue {

// Copies the books of each job into a Redis stream, sluice:{<job id>}:ledger, that others may
// follow. One way, and never waited for: whatever Redis does, the queue goes on.
//
// An entry's id is <queue incarnation>-<event>, so an entry sent twice is stored once. Its fields:
// `kind` (accepted, dropped, applied, durable, restored), `version` (K), the ledger's counters by
// their names, `dropped.<reason>` where it is not 0, `hash` (hex), of applied ones `batch`
// (canonical bytes of batch K - 1, so that H(K) can be recomputed). `prev` is the id of the entry
// before it. An entry with `gap` in its place says that others before it are missing, and why:
// `start` (a new run of the queue), `overflow` (Redis took too little, `missed` entries), `lost`
// (Redis no longer had them); its counters stand for them. Streams are trimmed to about `entries`,
// and expire some days after the job is freed.
//
// Thread-safe. Owns a thread, `mirror`, the only one that talks to Redis.
class LedgerMirror {
 public:
  struct Options {
    redis::Endpoint redis;
    absl::Duration timeout = absl::Seconds(2);  // Of a wait for Redis.
    // How often a quiet mirror looks whether Redis still has it all.
    absl::Duration check = absl::Seconds(1);
    absl::Duration retry = absl::Seconds(1);    // Between tries to connect.
    absl::Duration linger = absl::Seconds(1);   // How long Stop() lets what waits go out.
    absl::Duration keep = absl::Hours(7 * 24);  // A freed job's stream.
    uint64_t entries = 100'000;                 // Kept in a stream, about.
    // Waiting, per job; beyond it all but the newest are given up.
    uint64_t buffer_bytes = 8 << 20;
  };
  // Needs Redis 6.2 or later.
  explicit LedgerMirror(Options options);
  ~LedgerMirror();  // Stop().

  // Takes note. An event at or below the newest noted of this run is old news.
  void Note(const std::string& job, uint64_t incarnation, std::shared_ptr<const BookEntry> entry)
      ABSL_LOCKS_EXCLUDED(mu_);
  // No more of this job.
  void Freed(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);

  struct State {
    bool connected = false;
    uint64_t lag = 0;      // Entries noted and not in Redis yet.
    uint64_t dropped = 0;  // Entries given up: their sums are in later ones.
  };
  State state() const ABSL_LOCKS_EXCLUDED(mu_);

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
    std::shared_ptr<const BookEntry> entry;
    uint64_t bytes = 0;
    const char* gap = nullptr;  // Why it does not follow the one before it; null: it does.
    uint64_t missed = 0;        // Entries given up in that gap.
  };
  struct Stream {
    std::deque<Waiting> waiting;
    uint64_t bytes = 0;   // Of `waiting`.
    Waiting newest;       // Noted last, waiting or not.
    Id written;           // Redis holds all up to here.
    Id sent;              // It may hold all up to here.
    std::string refused;  // Why Redis takes no entry of this stream; empty: it does.
    bool freed = false;
  };
  // What one pass sends for one stream, gathered under the lock.
  struct Plan {
    std::string job;
    std::vector<Waiting> entries;
    Id written;
    bool last = false;  // The job is freed, and these are its last entries.
  };

  void Loop();
  bool AwaitWork(bool up, Instant due) ABSL_LOCKS_EXCLUDED(mu_);  // False: stop.
  absl::Status Compare() ABSL_LOCKS_EXCLUDED(mu_);
  void Compared(const std::string& job, Stream& stream, const redis::Reply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Send() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Plan> Gather() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  redis::Command EntryOf(const Plan& plan, size_t place) const;
  void Settle(const Plan& plan, const redis::Reply* replies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Written(Stream& stream, const Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Overflow(const std::string& job, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lost(const std::string& job, Stream& stream, const Id& top)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetRefused(const std::string& job, Stream& stream, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Pending() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  redis::Connection redis_;  // Of the thread, but for Break().
  // Of the thread: how it stood when it was last logged.
  absl::StatusCode told_ = absl::StatusCode::kUnknown;
  mutable Mutex mu_;
  CondVar changed_;
  std::map<std::string, Stream> streams_ ABSL_GUARDED_BY(mu_);  // By job.
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // The thread has ended.
  std::thread thread_;
};

}  // namespace sluice::queue
