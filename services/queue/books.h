#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "services/queue/core/job.h"

namespace sluice::queue {

// A change of a job's books, with all of them as they are after it: enough to go on from, whatever
// was missed before.
struct BookEntry {
  enum class Kind { kAccepted = 1, kDropped, kApplied, kDurable, kRestored };

  Kind kind = Kind::kAccepted;
  int64_t version = 0;  // K
  Ledger ledger;        // `event` numbers the entry within a run of the queue.
  std::string batch;    // kApplied: canonical bytes of batch K - 1, from which H(K) follows.
};

const char* NameOf(BookEntry::Kind kind);

// Notices, event by event, what changes in one job's books.
class BookWatch {
 public:
  explicit BookWatch(const Job& job) { Take(job); }

  // After `event` was applied; null: it changed nothing.
  std::shared_ptr<const BookEntry> Changed(const Event& event, const Job& job);

 private:
  void Take(const Job& job);

  // A drop shows in `live`, a hash in the version: these five tell all changes.
  int64_t accepted_ = 0, durable_ = 0, applied_ = 0, live_ = 0, version_ = 0;
};

// All that a job's books say now, without a change: what a new reader begins with.
BookEntry BooksOf(const Job& job);

}  // namespace sluice::queue
