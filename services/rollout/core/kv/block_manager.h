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

// Returns how many blocks hold `tokens` tokens.
inline constexpr uint32_t BlocksFor(uint64_t tokens) {
  return static_cast<uint32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

// A hash of 128 bits. It identifies a chain of blocks (the tokens from a sequence's start to the
// end of a block), or what keys and values were computed with.
struct KvHash {
  uint64_t lo = 0, hi = 0;
  bool operator==(const KvHash&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const KvHash& k) {
    return H::combine(std::move(h), k.lo);  // One half is enough: all bits are well mixed.
  }
};

// Hashes what the keys and values of all requests depend on beside their tokens. `layout_id` is
// that of the weights. It covers their types, from which the type of the keys and values follows. A
// look-up under one salt never finds a block of another.
KvHash KvSalt(absl::string_view job, absl::Span<const uint64_t> weights_fingerprint,
              absl::string_view layout_id);
// Returns the hash from which the chains of a request start. It depends on the digest of the
// request's adapter, which is empty without an adapter. Chains of different roots never match, so
// a request never finds blocks of another adapter.
KvHash KvRoot(absl::string_view adapter);

// Where a request's keys and values lie: blocks[j] has its positions 32 j .. 32 j + 31.
struct BlockTable {
  std::vector<int32_t> blocks;
  KvHash root;  // Start of the chain; set before the first block.
  // The first `indexed` blocks are in the index, and `chain` is the hash that the last of them has
  // there. If `indexed` is 0, `chain` is `root`.
  uint32_t indexed = 0;
  KvHash chain;
};

// Knows which request holds which block of the KV cache, and finds full blocks again by the tokens
// that they were computed from (the prefix cache). It handles block numbers only; the keys and
// values themselves are the model's.
//
// A block is in one of three states:
//   active: at least one table refers to it.
//   cached: no table refers to it, but it is in the index, so that it can be found.
//   free:   neither.
// An allocation takes a free block. If there is none, it takes the cached block that has been
// unused for longest; blocks of other salts than the current one go before all blocks of this one.
// When a chain was released, its last block is taken first, because the other blocks are still
// useful without it.
//
// A full block is indexed under H(hash of the chain before it, its 32 tokens, salt). A look-up also
// compares these tokens and the salt. So even if hashes collide, it never returns a block that has
// other tokens or comes from other weights. The index has one block per chain: a request that
// computes the same chain again gives up its own block and takes the indexed one.
//
// A block that several tables share, or that is indexed, is never written: Reserve() replaces it by
// a copy first. Not thread-safe. Once made, it allocates memory only for tables and copies.
class BlockManager {
 public:
  struct Copy {
    int32_t from = 0, to = 0;
    bool operator==(const Copy&) const = default;
  };

  BlockManager(uint32_t blocks, KvHash salt);

  // Says that keys and values are computed with `salt` from now on. Cached blocks of other salts
  // are not found any more, and are the first to be allocated. Those still there when their salt
  // returns are found again.
  void SetSalt(KvHash salt);

  // Looks `tokens` up in the index, block by block from the root of `table`, and puts the blocks of
  // the longest chain that is there into `table`, which must be empty. Returns their number of
  // tokens.
  uint32_t Match(absl::Span<const int32_t> tokens, BlockTable* table);

  // Makes `to` share the blocks of the first `tokens` positions of `from`; the last of them may
  // hold further positions of `from`. `to` must be empty and have the same root.
  void Fork(const BlockTable& from, uint32_t tokens, BlockTable* to);

  // Gives `table` blocks for positions [0, tokens), so that positions [first, tokens) may be
  // written. If one of these lies in a block that is shared or indexed, the table gets another
  // block for it, and `copies` a copy that must be made before the write. Returns false and changes
  // nothing if there are not enough blocks.
  bool Reserve(BlockTable* table, uint32_t first, uint32_t tokens, std::vector<Copy>* copies);

  // Puts those full blocks of `tokens` into the index that are not there yet. `tokens` are the
  // request's tokens whose keys and values are computed, all of them under the current salt.
  void Index(absl::Span<const int32_t> tokens, BlockTable* table);

  // Gives back all blocks of `table`, and empties it.
  void Release(BlockTable* table);

  uint32_t blocks() const { return static_cast<uint32_t>(state_.size()); }
  // Number of blocks that are free or cached.
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
    int32_t before = -1, after = -1;  // Neighbours in the list of a cached block; -1: none.
    KvHash key, salt;                 // Valid while it is indexed.
  };
  // A doubly linked list of cached blocks. `first` is allocated first. -1: empty.
  struct List {
    int32_t first = -1, last = -1;
  };

  List& ListOf(const State& state) { return state.salt == salt_ ? fresh_ : stale_; }
  // Append and Unlink work on the lists of cached blocks; AddReference and DropReference count
  // references.
  void Append(List* list, int32_t block);
  void Unlink(int32_t block);
  void Unindex(int32_t block);
  int32_t Allocate();
  void AddReference(int32_t block);
  void DropReference(int32_t block);
  int32_t Find(KvHash key, absl::Span<const int32_t> ids) const;

  KvHash salt_;
  std::vector<State> state_;
  std::vector<Ids> ids_;                        // By block: its tokens, valid while it is indexed.
  std::vector<int32_t> free_;                   // A stack: the last one is allocated next.
  List stale_, fresh_;                          // Cached blocks of other salts, and of salt_.
  uint32_t cached_ = 0;                         // Blocks in both lists.
  absl::flat_hash_map<KvHash, int32_t> index_;  // Block by State::key.
};

}  // namespace sluice
