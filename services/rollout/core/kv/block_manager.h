#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

inline constexpr uint32_t kBlockTokens = 32;

// Blocks that hold `tokens` tokens.
inline constexpr uint32_t BlocksFor(uint64_t tokens) {
  return static_cast<uint32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

// 128 bits: names a chain of blocks, or what keys and values were computed with.
struct KvHash {
  uint64_t lo = 0, hi = 0;
  bool operator==(const KvHash&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const KvHash& k) {
    return H::combine(std::move(h), k.lo);  // Well mixed already.
  }
};

// What all keys and values depend on beside the tokens before them. Blocks of different salts never
// meet.
KvHash KvSalt(absl::string_view job, absl::Span<const uint64_t> weights_fingerprint,
              absl::string_view kv_dtype);
// What those of one request depend on further: chains of different roots never meet. Empty: no
// adapter.
KvHash KvRoot(absl::string_view adapter);

// Where a request's keys and values lie: blocks[j] has its positions 32 j .. 32 j + 31.
struct BlockTable {
  std::vector<int32_t> blocks;
  // Where its chain begins: what else its keys and values depend on, set before its first block.
  KvHash root;
  uint32_t indexed = 0;  // Of the leading blocks, how many are in the index under `chain`.
  KvHash chain;          // Of the last of them.
};

// Who holds which block of the KV pool, and which full blocks may be found again by their content.
// Integers only: the pool itself is the model's.
//
// A block is free, active (references > 0) or cached (none, but indexed). Allocation takes free
// blocks first, then the cached block unused for longest, those of older salts before all others;
// within one chain the tail goes first. A full block is indexed under H(parent, its 32 ids, salt);
// a hit compares ids and salt, so a block is never found for other tokens, and never for other
// weights. An index holds a content once: who computes it again gets the block that is there.
//
// No write goes to a block that is shared or indexed: Reserve() copies it first. Not thread-safe;
// allocates nothing once made, but for the tables.
class BlockManager {
 public:
  struct Copy {
    int32_t from = 0, to = 0;
    bool operator==(const Copy&) const = default;
  };

  BlockManager(uint32_t blocks, KvHash salt);

  // From now on keys and values are computed with `salt`. Cached blocks of others stay, but leave
  // first; back under their salt they are found again.
  void SetSalt(KvHash salt);

  // Takes the longest indexed chain from its root that `tokens` begins with, of whole blocks, into
  // the empty `table`. Returns its tokens.
  uint32_t Match(absl::Span<const int32_t> tokens, BlockTable* table);

  // Makes the empty `to`, of the same root, hold the first `tokens` positions of `from` by
  // reference, the last block perhaps in part.
  void Fork(const BlockTable& from, uint32_t tokens, BlockTable* to);

  // Makes room in `table` for positions up to `tokens`, of which those from `first` on may be
  // written: a shared or indexed block among them is replaced by a copy, to be made before the
  // write and appended to `copies`. False, and nothing changed: there are not enough blocks.
  bool Reserve(BlockTable* table, uint32_t first, uint32_t tokens, std::vector<Copy>* copies);

  // Puts into the index those full blocks of `tokens`, the computed ones, that are not there yet.
  // All of `table` must have been computed with the salt of now.
  void Index(absl::Span<const int32_t> tokens, BlockTable* table);

  // Gives back all blocks of `table`.
  void Release(BlockTable* table);

  uint32_t blocks() const { return static_cast<uint32_t>(state_.size()); }
  // Free or cached.
  uint32_t available() const { return static_cast<uint32_t>(free_.size()) + cached_; }
  uint32_t active() const { return blocks() - available(); }
  uint32_t cached() const { return cached_; }
  uint32_t references(int32_t block) const { return state_[block].references; }
  bool indexed(int32_t block) const { return state_[block].indexed; }

 private:
  using Ids = std::array<int32_t, kBlockTokens>;
  struct State {
    uint32_t references = 0;
    bool indexed = false;
    int32_t before = -1, after = -1;  // Neighbours in a list of cached blocks.
    KvHash key, salt;                 // While indexed.
  };
  // Cached blocks, the one to go next first.
  struct List {
    int32_t first = -1, last = -1;
  };

  List& ListOf(const State& state) { return state.salt == salt_ ? fresh_ : stale_; }
  void Append(List* list, int32_t block);
  void Unlink(int32_t block);
  void Unindex(int32_t block);
  int32_t Allocate();
  void Hold(int32_t block);
  void Drop(int32_t block);
  int32_t Find(KvHash key, absl::Span<const int32_t> ids) const;

  KvHash salt_;
  std::vector<State> state_;
  std::vector<Ids> ids_;       // Of indexed blocks.
  std::vector<int32_t> free_;  // The last goes next.
  List stale_, fresh_;         // Of older salts; of the salt of now.
  uint32_t cached_ = 0;
  absl::flat_hash_map<KvHash, int32_t> index_;
};

}  // namespace sluice
