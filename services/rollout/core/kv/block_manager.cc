#include "services/rollout/core/kv/block_manager.h"

#include <algorithm>
#include <utility>

#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// A hash of 128 bits from two lanes of 64. Each lane mixes every word in with splitmix64's
// finaliser; the lanes start from different values and combine words differently.
struct Hasher {
  uint64_t a, b;

  explicit Hasher(KvHash start) : a(start.lo), b(start.hi) {}
  void Add(uint64_t x) {
    a = Mix64(a + kGolden + x);
    b = Mix64((b ^ x) * 0xD6E8FEB86659FD93 + kGolden);
  }
  void Add(absl::string_view text) {
    Add(text.size());
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      for (size_t j = i; j < std::min(i + 8, text.size()); ++j)
        word = word << 8 | static_cast<uint8_t>(text[j]);
      Add(word);
    }
  }
  KvHash Get() const { return {a, b}; }
};

// Hashes a chain of blocks: the chain before its last block, and the tokens of that block.
KvHash ChainKey(KvHash parent, absl::Span<const int32_t> ids, KvHash salt) {
  Hasher hasher(parent);
  for (uint32_t i = 0; i < kBlockTokens; i += 2) {
    hasher.Add(uint64_t{static_cast<uint32_t>(ids[i])} << 32 | static_cast<uint32_t>(ids[i + 1]));
  }
  hasher.Add(salt.lo);
  hasher.Add(salt.hi);
  return hasher.Get();
}

}  // namespace

// The hashes of salts and of roots start from "kv_salt" and "kv_root" in ASCII, so that a salt and
// a root of the same input differ.
KvHash KvSalt(absl::string_view job, absl::Span<const uint64_t> weights_fingerprint,
              absl::string_view layout_id) {
  Hasher hasher({0x6b765f73616c74, 1});
  hasher.Add(job);
  for (uint64_t word : weights_fingerprint) hasher.Add(word);
  hasher.Add(layout_id);
  return hasher.Get();
}

KvHash KvRoot(absl::string_view adapter) {
  if (adapter.empty()) return {};
  Hasher hasher({0x6b765f726f6f74, 1});
  hasher.Add(adapter);
  return hasher.Get();
}

BlockManager::BlockManager(uint32_t blocks, KvHash salt)
    : salt_(salt), state_(blocks), ids_(blocks) {
  free_.reserve(blocks);
  for (uint32_t i = blocks; i > 0; --i) free_.push_back(static_cast<int32_t>(i - 1));
  index_.reserve(blocks);
}

void BlockManager::Append(List* list, int32_t block) {
  State& state = state_[block];
  state.before = list->last;
  state.after = -1;
  (list->last >= 0 ? state_[list->last].after : list->first) = block;
  list->last = block;
}

void BlockManager::Unlink(int32_t block) {
  State& state = state_[block];
  List& list = ListOf(state);
  (state.before >= 0 ? state_[state.before].after : list.first) = state.after;
  (state.after >= 0 ? state_[state.after].before : list.last) = state.before;
}

void BlockManager::SetSalt(KvHash salt) {
  if (salt == salt_) return;

  // The list of stale blocks keeps its order, and the fresh ones are appended, because they were
  // used last. Blocks of the new salt, if it was in use before, make the new list of fresh blocks.
  List stale, fresh;
  for (int32_t first : {stale_.first, fresh_.first}) {
    for (int32_t block = first, after; block >= 0; block = after) {
      after = state_[block].after;
      Append(state_[block].salt == salt ? &fresh : &stale, block);
    }
  }
  stale_ = stale;
  fresh_ = fresh;
  salt_ = salt;
}

void BlockManager::Unindex(int32_t block) {
  index_.erase(state_[block].key);
  state_[block].indexed = false;
}

// Returns a block with one reference. A free or cached block must be there.
int32_t BlockManager::Allocate() {
  int32_t block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    block = stale_.first >= 0 ? stale_.first : fresh_.first;
    SLUICE_CHECK(block >= 0);
    Unlink(block);
    --cached_;
    Unindex(block);
  }
  state_[block].references = 1;
  return block;
}

// Adds a reference. A cached block leaves its list.
void BlockManager::AddReference(int32_t block) {
  State& state = state_[block];
  if (state.references++ == 0) {
    Unlink(block);
    --cached_;
  }
}

// Takes a reference away. Without one the block is cached if it is indexed, else free.
void BlockManager::DropReference(int32_t block) {
  State& state = state_[block];
  SLUICE_CHECK(state.references > 0);
  if (--state.references > 0) return;
  if (state.indexed) {
    Append(&ListOf(state), block);
    ++cached_;
  } else {
    free_.push_back(block);
  }
}

// Returns the block indexed under `key` if it holds the tokens `ids` under the current salt, else
// -1.
int32_t BlockManager::Find(KvHash key, absl::Span<const int32_t> ids) const {
  const auto it = index_.find(key);
  if (it == index_.end()) return -1;
  const int32_t block = it->second;
  return state_[block].salt == salt_ && std::equal(ids.begin(), ids.end(), ids_[block].begin())
             ? block
             : -1;
}

uint32_t BlockManager::Match(absl::Span<const int32_t> tokens, BlockTable* table) {
  SLUICE_CHECK(table->blocks.empty() && table->indexed == 0);
  KvHash chain = table->root;
  for (size_t at = 0; at + kBlockTokens <= tokens.size(); at += kBlockTokens) {
    const absl::Span<const int32_t> ids = tokens.subspan(at, kBlockTokens);
    const KvHash key = ChainKey(chain, ids, salt_);
    const int32_t block = Find(key, ids);
    if (block < 0) break;
    AddReference(block);
    table->blocks.push_back(block);
    chain = key;
  }
  table->indexed = static_cast<uint32_t>(table->blocks.size());
  table->chain = chain;
  return table->indexed * kBlockTokens;
}

void BlockManager::Fork(const BlockTable& from, uint32_t tokens, BlockTable* to) {
  const uint32_t count = BlocksFor(tokens);
  SLUICE_CHECK(to->blocks.empty() && to->root == from.root && count <= from.blocks.size());
  to->blocks.assign(from.blocks.begin(), from.blocks.begin() + count);
  for (int32_t block : to->blocks) AddReference(block);

  // Only whole shared blocks count as indexed in the fork, because the fork continues a partial
  // block with tokens of its own.
  to->indexed = std::min(from.indexed, tokens / kBlockTokens);
  to->chain = to->indexed == 0 ? to->root : state_[to->blocks[to->indexed - 1]].key;
}

bool BlockManager::Reserve(BlockTable* table, uint32_t first, uint32_t tokens,
                           std::vector<Copy>* copies) {
  const uint32_t wanted = BlocksFor(tokens), held = static_cast<uint32_t>(table->blocks.size());
  // A locked block may not be written.
  const auto locked = [&](uint32_t j) {
    const State& state = state_[table->blocks[j]];
    return state.references > 1 || state.indexed;
  };

  // Count first, so that nothing has changed if there are too few blocks.
  uint32_t missing = wanted > held ? wanted - held : 0;
  for (uint32_t j = first / kBlockTokens; j < std::min(held, wanted); ++j) missing += locked(j);
  if (missing > available()) return false;

  for (uint32_t j = first / kBlockTokens; j < std::min(held, wanted); ++j) {
    if (!locked(j)) continue;
    const int32_t from = table->blocks[j];
    table->blocks[j] = Allocate();
    copies->push_back({from, table->blocks[j]});
    DropReference(from);

    // The copy is not in the index, so the indexed part of the table ends before it.
    if (j < table->indexed) {
      table->indexed = j;
      table->chain = j == 0 ? table->root : state_[table->blocks[j - 1]].key;
    }
  }
  while (table->blocks.size() < wanted) table->blocks.push_back(Allocate());
  return true;
}

void BlockManager::Index(absl::Span<const int32_t> tokens, BlockTable* table) {
  while ((table->indexed + 1) * kBlockTokens <= tokens.size()) {
    const absl::Span<const int32_t> ids =
        tokens.subspan(size_t{table->indexed} * kBlockTokens, kBlockTokens);
    const KvHash key = ChainKey(table->chain, ids, salt_);
    int32_t& block = table->blocks[table->indexed];

    // If another request has indexed the same chain, its block replaces this one.
    const auto [it, inserted] = index_.try_emplace(key, block);
    if (inserted) {
      State& state = state_[block];
      state.indexed = true;
      state.key = key;
      state.salt = salt_;
      std::copy(ids.begin(), ids.end(), ids_[block].begin());
    } else if (it->second != block) {
      const int32_t there = Find(key, ids);
      // The hash collides with another chain, so this chain is not indexed further.
      if (there < 0) return;
      AddReference(there);
      DropReference(std::exchange(block, there));
    }
    ++table->indexed;
    table->chain = key;
  }
}

void BlockManager::Release(BlockTable* table) {
  // The chain's last block is cached first, so it is also the first to be allocated again.
  for (size_t j = table->blocks.size(); j > 0; --j) DropReference(table->blocks[j - 1]);
  table->blocks.clear();
  table->indexed = 0;
  table->chain = table->root;
}

}  // namespace sluice
