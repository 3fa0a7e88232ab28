#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/queue/core/lineage.h"
#include "services/queue/core/prompts.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// A member as the cut froze it.
struct FrozenMember {
  uint32_t member = 0, attempt = 0;
  // `tokens` counts the tokens of the group's prompt too.
  uint64_t tokens = 0, trained = 0, masked_count = 0;
  uint32_t crc32c = 0;
  std::vector<TokenRun> masked;          // Trainable tokens that are left out.
  PolicyVersion oldest, newest;          // Of the trained tokens.
  std::map<int64_t, int64_t> histogram;  // Trained tokens by staleness.
};

struct FrozenGroup {
  GroupId id;
  RowRef row;
  uint32_t size = 0;  // How many members it had, dropped ones included.
  // Rewards, at the time of the cut, of other answers to the same prompt: those that this group
  // does not train.
  std::vector<double> pool;
  std::vector<FrozenMember> members;
};

// Batch k. Groups are only added at the end of its list. Once it is closed, the list never changes.
struct Batch {
  int64_t k = 0;
  std::vector<FrozenGroup> groups;
  bool closed = false;
  bool applied = false;
  bool skipped = false;
  uint32_t crc32c = 0;  // CRC32C of the canonical bytes, once closed.
  std::string hash;     // H(k + 1), once closed.
  std::optional<Id16> lease;
  uint32_t handed = 0;  // Groups handed out so far.
};

// Canonical bytes of a batch: per member, packed little-endian, group id (16), u32 member, u32
// attempt, u32 CRC32C of its own tokens followed by its log-probs, u32 n, n x (u64 first, u64
// count) masked runs.
std::string CanonicalBytes(const std::vector<FrozenGroup>& groups);
// H(k+1) = SHA-256(H(k), i64 k little-endian, canonical bytes of batch k).
std::string NextHash(const std::string& hash, int64_t k, const std::string& canonical);

// What a checkpoint of version K keeps of the queue, so that the job can go on from it even if the
// queue lost the job.
struct Cursor {
  std::string job;
  int64_t version = 0;  // K
  Ledger ledger;        // As of K: `hash` is H(K).
  uint64_t next_group = 0;
  int64_t incarnation = 0;  // Of the trainer group that wrote it.
  Prompts::Progress prompts;
  // Prompts that were drawn and whose groups are neither trained below K nor dropped.
  std::vector<RowRef> live;
  std::map<uint32_t, Lineage::Generation> lineage;
};

std::string EncodeCursor(const Cursor& cursor);
// INVALID_ARGUMENT: not a cursor of this format.
absl::StatusOr<Cursor> DecodeCursor(const std::string& text);

}  // namespace sluice::queue
