#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/trainer/core/experience.h"

namespace sluice::trainer {

// The lineage of a checkpoint: which trajectories its weights were trained on, in the order of
// training. Kept as lineage.jsonl, one object per trajectory:
//   {"k":0,"group":"..32 hex digits..","member":0,"attempt":1,"crc":123,
//    "masked":[[first,count],..],"skipped":"reason"}                (on one line)
// `masked` and `skipped` are left out where empty. It holds all that the ledger's hash chain needs,
// so anyone can recompute the chain and compare it with what the queue wrote down.
struct LineageEntry {
  int64_t k = 0;  // Step that trained it.
  Id16 group;
  uint32_t member = 0;
  uint32_t attempt = 0;
  uint32_t crc32c = 0;  // Of its own tokens followed by its log-probs.
  std::vector<TokenRun> masked;
  std::string skipped;  // Why its step changed no weights. Empty: it did.

  bool operator==(const LineageEntry&) const = default;
};

LineageEntry MakeLineageEntry(int64_t k, const Id16& group, const Trajectory& trajectory,
                              absl::string_view skipped);

// With the newline.
std::string LineageLine(const LineageEntry& entry);
// INVALID_ARGUMENT: not such a line; names what is wrong.
absl::StatusOr<LineageEntry> ParseLineageLine(absl::string_view line);

// A batch as the ledger hashes it: per member, packed little-endian, group id, u32 member, u32
// attempt, u32 CRC32C, u32 n, n x (u64 first, u64 count) masked runs.
std::string CanonicalBytes(absl::Span<const LineageEntry> batch);

// The chain: H(0) = 32 zero bytes, H(k + 1) = SHA-256(H(k), i64 k, canonical bytes of batch k).
std::string FirstLedgerHash();
std::string NextLedgerHash(absl::string_view hash, int64_t k, absl::string_view canonical);

struct LineageSummary {
  int64_t version = 0;  // Steps the chain covers.
  int64_t trajectories = 0;
  std::string hash;  // H(version), 32 bytes.
};

// Checks the text of a lineage.jsonl of version `version`, which may come in pieces cut anywhere:
// steps never fall and lie below `version`, no (group, member) is there twice. Steps without a line
// had no trajectories. Not thread-safe.
class LineageCheck {
 public:
  explicit LineageCheck(int64_t version);

  // DATA_LOSS: a broken rule, with the line's number.
  absl::Status Add(absl::string_view piece);
  // The recomputed chain; the caller compares the hash. DATA_LOSS: the text ends inside a line.
  absl::StatusOr<LineageSummary> Finish();

 private:
  absl::Status AddLine(absl::string_view line);
  void CloseStepsBelow(int64_t k);

  LineageSummary summary_;
  absl::flat_hash_set<std::pair<Id16, uint32_t>> seen_;
  int64_t line_number_ = 0;  // Of the last whole line.
  std::string rest_;         // The last line's start, until its end comes.

  // summary_.hash is H(k_): steps below k_ are in the chain, `batch_` is what step k_ has so far.
  int64_t k_ = 0;
  std::vector<LineageEntry> batch_;
};

// The same for a text in one piece.
absl::StatusOr<LineageSummary> CheckLineage(absl::string_view text, int64_t version);

}  // namespace sluice::trainer
