#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "services/queue/core/job.h"

namespace sluice::queue {

// A change of a job's ledger, with the whole ledger after the change. A reader that has missed
// earlier entries can go on from any entry.
struct LedgerEntry {
  enum class Kind { kAccepted = 1, kDropped, kApplied, kDurable, kRestored };

  Kind kind = Kind::kAccepted;
  int64_t version = 0;  // K, the version that the trainer holds.
  Ledger ledger;        // `event` is the number of the job's event after which it was read.
  std::string batch;  // With kApplied: the canonical bytes of batch K - 1, from which H(K) follows.
};

const char* NameOf(LedgerEntry::Kind kind);

// Finds the changes of one job's ledger, event by event. Not thread-safe.
class LedgerWatch {
 public:
  explicit LedgerWatch(const Job& job) { SetLast(job); }

  // The change that `event` made, which has just been applied. Null if it changed nothing.
  std::shared_ptr<const LedgerEntry> FindChange(const Event& event, const Job& job);

 private:
  void SetLast(const Job& job);

  // Values at the last change. Every change of the ledger changes one of them, except a change of
  // tokens_generated alone (as by a Put), for which there is no entry. A drop changes `live_`, and
  // a new hash changes `version_`.
  int64_t accepted_ = 0, durable_ = 0, applied_ = 0, live_ = 0, version_ = 0;
};

// The whole ledger of a job as it is now. New readers get it first.
LedgerEntry LedgerOf(const Job& job);

}  // namespace sluice::queue
