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

// The lineage of a checkpoint: the trajectories on which its weights were trained, in the order of
// training. It is kept as lineage.jsonl, one object per trajectory:
//   {"k":0,"group":"..32 hex digits..","member":0,"attempt":1,"crc":123,
//    "masked":[[first,count],..],"skipped":"reason"}                (on one line)
// `masked` and `skipped` are left out if they are empty. The lines have all that the ledger's hash
// chain needs, so anyone can recompute the chain and compare it with the queue's ledger.
struct LineageEntry {
  int64_t k = 0;  // Step that trained the trajectory.
  Id16 group;
  uint32_t member = 0;
  uint32_t attempt = 0;
  uint32_t crc32c = 0;  // CRC32C of its own tokens followed by its log-probs.
  std::vector<TokenRun> masked;
  std::string skipped;  // Why its step did not change the weights. Empty if it did.

  bool operator==(const LineageEntry&) const = default;
};

LineageEntry MakeLineageEntry(int64_t k, const Id16& group, const Trajectory& trajectory,
                              absl::string_view skipped);

// The line for an entry, with its newline.
std::string LineageLine(const LineageEntry& entry);
// INVALID_ARGUMENT: this is no such line; the message says what is wrong.
absl::StatusOr<LineageEntry> ParseLineageLine(absl::string_view line);

// A batch in the form that the ledger hashes. For each member, packed little-endian: group id, u32
// member, u32 attempt, u32 CRC32C, u32 n, n x (u64 first, u64 count) masked runs.
std::string CanonicalBytes(absl::Span<const LineageEntry> batch);

// The hash chain: H(0) = 32 zero bytes, H(k + 1) = SHA-256(H(k), i64 k, canonical bytes of batch
// k).
std::string FirstLedgerHash();
std::string NextLedgerHash(absl::string_view hash, int64_t k, absl::string_view canonical);

struct LineageSummary {
  int64_t version = 0;  // Number of steps in the chain.
  int64_t trajectories = 0;
  std::string hash;  // H(version), 32 bytes.
};

// Checks the text of the lineage.jsonl of version `version`, which may come in pieces that are cut
// anywhere. The numbers of steps must not decrease and must lie below `version`, and no (group,
// member) may occur twice. A step without a line had no trajectories. Not thread-safe.
class LineageCheck {
 public:
  explicit LineageCheck(int64_t version);

  // Adds the next piece of the text. DATA_LOSS: a rule is broken; the message has the number of the
  // line.
  absl::Status Add(absl::string_view piece);
  // Returns the recomputed chain; the caller must compare its hash. DATA_LOSS: the text ends inside
  // a line.
  absl::StatusOr<LineageSummary> Finish();

 private:
  absl::Status AddLine(absl::string_view line);
  // Adds the steps below k to the chain.
  void CloseStepsBelow(int64_t k);

  LineageSummary summary_;
  absl::flat_hash_set<std::pair<Id16, uint32_t>> seen_;
  int64_t line_number_ = 0;  // Number of the last complete line.
  std::string rest_;         // Start of the line whose end has not come yet.

  // summary_.hash is H(k_): the steps below k_ are in the chain, and `batch_` has the entries of
  // step k_ so far. 0 <= k_ <= summary_.version.
  int64_t k_ = 0;
  std::vector<LineageEntry> batch_;
};

// Checks a text that is in one piece. Errors are those of LineageCheck.
absl::StatusOr<LineageSummary> CheckLineage(absl::string_view text, int64_t version);

}  // namespace sluice::trainer
