#include "services/queue/ledger_watch.h"

namespace sluice::queue {

const char* NameOf(LedgerEntry::Kind kind) {
  static constexpr const char* kNames[] = {"",        "accepted", "dropped",
                                           "applied", "durable",  "restored"};
  return kNames[static_cast<int>(kind)];
}

LedgerEntry LedgerOf(const Job& job) {
  return {.kind = LedgerEntry::Kind::kRestored, .version = job.version(), .ledger = job.ledger()};
}

void LedgerWatch::SetLast(const Job& job) {
  const Ledger& ledger = job.ledger();
  accepted_ = ledger.accepted, durable_ = ledger.durable, applied_ = ledger.applied,
  live_ = ledger.live, version_ = job.version();
}

std::shared_ptr<const LedgerEntry> LedgerWatch::FindChange(const Event& event, const Job& job) {
  const Ledger& ledger = job.ledger();
  const bool applied = job.version() > version_, durable = ledger.durable > durable_,
             accepted = ledger.accepted > accepted_;
  const bool restored = std::holds_alternative<Restore>(event.input);
  if (job.version() == version_ && ledger.durable == durable_ && ledger.applied == applied_ &&
      ledger.accepted == accepted_ && ledger.live == live_)
    return nullptr;

  SetLast(job);
  auto entry = std::make_shared<LedgerEntry>(LedgerOf(job));
  if (restored) return entry;

  using Kind = LedgerEntry::Kind;
  entry->kind = applied    ? Kind::kApplied
                : durable  ? Kind::kDurable
                : accepted ? Kind::kAccepted
                           : Kind::kDropped;
  if (applied) entry->batch = CanonicalBytes(job.batches().at(job.version() - 1).groups);
  return entry;
}

}  // namespace sluice::queue
