#include "services/rollout/core/kv/block_manager.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "common/base/splitmix.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Copy = BlockManager::Copy;
using Tokens = std::vector<int32_t>;

KvHash Salt(uint64_t weights, absl::string_view job = "job", absl::string_view dtype = "float32") {
  return KvSalt(job, {weights}, dtype);
}

Tokens Count(int32_t from, size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

// Does what a request does: finds a prefix, reserves blocks for the rest, indexes what it computed.
BlockTable Compute(BlockManager* manager, const Tokens& tokens) {
  BlockTable table;
  std::vector<Copy> copies;
  const uint32_t found =
      manager->Match(absl::MakeConstSpan(tokens).first(tokens.size() - 1), &table);
  EXPECT_TRUE(manager->Reserve(&table, found, static_cast<uint32_t>(tokens.size()), &copies));
  EXPECT_THAT(copies, IsEmpty());
  manager->Index(tokens, &table);
  return table;
}

// The number of leading tokens that are found.
uint32_t Found(BlockManager* manager, const Tokens& tokens) {
  BlockTable table;
  const uint32_t found = manager->Match(tokens, &table);
  manager->Release(&table);
  return found;
}

TEST(BlockManagerTest, AChainIsFoundFromItsOwnRootAlone) {
  BlockManager manager(16, Salt(1));
  const Tokens tokens = Count(0, 100);
  const auto table_of = [](absl::string_view adapter) {
    BlockTable table;
    table.root = table.chain = KvRoot(adapter);
    return table;
  };
  std::vector<Copy> copies;
  for (const char* adapter : {"", "a", "b"}) {
    BlockTable table = table_of(adapter);
    EXPECT_EQ(manager.Match(tokens, &table), 0u) << "adapter " << adapter;

    ASSERT_TRUE(manager.Reserve(&table, 0, 100, &copies));
    manager.Index(tokens, &table);

    // A fork of less than a block has no chain yet, so it begins at the root.
    BlockTable fork = table_of(adapter);
    manager.Fork(table, 20, &fork);
    manager.Release(&fork);
    manager.Release(&table);
    EXPECT_EQ(manager.Match(tokens, &table), 96u) << "a released table begins at its root again";

    manager.Release(&table);
  }

  EXPECT_EQ(manager.cached(), 9u);  // Three full blocks for each adapter.
}

TEST(BlockManagerTest, FullBlocksAreFoundAgainAndPartsAreNot) {
  BlockManager manager(8, Salt(1));
  BlockTable table = Compute(&manager, Count(0, 100));
  EXPECT_EQ(manager.active(), 4u);

  manager.Release(&table);
  EXPECT_EQ(manager.active(), 0u);
  EXPECT_EQ(manager.cached(), 3u);
  EXPECT_EQ(Found(&manager, Count(0, 200)), 96u);
  EXPECT_EQ(Found(&manager, Count(0, 95)), 64u);
  EXPECT_EQ(Found(&manager, Count(0, 31)), 0u);
  EXPECT_EQ(Found(&manager, Count(1, 64)), 0u);
  EXPECT_EQ(Found(&manager, Count(32, 32)), 0u) << "a block alone, without what came before it";
}

TEST(BlockManagerTest, NoBlockIsFoundUnderAnotherSalt) {
  BlockManager manager(8, Salt(1));
  BlockTable table = Compute(&manager, Count(0, 64));
  manager.Release(&table);
  for (const KvHash& other : {Salt(2), Salt(1, "other"), Salt(1, "job", "bfloat16")}) {
    manager.SetSalt(other);
    EXPECT_EQ(Found(&manager, Count(0, 64)), 0u);
  }

  manager.SetSalt(Salt(1));
  EXPECT_EQ(Found(&manager, Count(0, 64)), 64u) << "a rewind finds what it left";
}

TEST(BlockManagerTest, TheBlocksOfOlderWeightsLeaveFirstAndTailsBeforeHeads) {
  BlockManager manager(6, Salt(1));
  BlockTable old = Compute(&manager, Count(0, 64)), kept = Compute(&manager, Count(500, 32));
  manager.Release(&old);
  manager.SetSalt(Salt(2));
  BlockTable fresh = Compute(&manager, Count(0, 96));
  EXPECT_EQ(manager.available(), 2u);

  manager.Release(&fresh);
  manager.Release(&kept);  // It is of older weights, although it was used last.
  BlockTable table;
  std::vector<Copy> copies;
  ASSERT_TRUE(manager.Reserve(&table, 0, 3 * 32, &copies));
  EXPECT_EQ(Found(&manager, Count(0, 96)), 96u) << "three blocks of older weights went";

  ASSERT_TRUE(manager.Reserve(&table, 3 * 32, 4 * 32, &copies));
  EXPECT_EQ(Found(&manager, Count(0, 96)), 64u) << "then the tail";
  manager.SetSalt(Salt(1));
  EXPECT_EQ(Found(&manager, Count(0, 64)), 0u);
  EXPECT_EQ(Found(&manager, Count(500, 32)), 0u);
}

TEST(BlockManagerTest, AForkSharesAndItsSecondWriterCopies) {
  BlockManager manager(8, Salt(1));
  BlockTable first = Compute(&manager, Count(0, 40)), fork;
  manager.Fork(first, 39, &fork);
  EXPECT_EQ(fork.blocks, first.blocks);
  EXPECT_EQ(manager.active(), 2u);

  std::vector<Copy> copies;
  ASSERT_TRUE(manager.Reserve(&fork, 39, 40, &copies));
  EXPECT_THAT(copies, ElementsAre(Copy{first.blocks[1], fork.blocks[1]}));
  EXPECT_EQ(fork.blocks[0], first.blocks[0]);

  copies.clear();
  ASSERT_TRUE(manager.Reserve(&first, 40, 41, &copies));
  EXPECT_THAT(copies, IsEmpty()) << "alone again";
  manager.Release(&first);
  EXPECT_EQ(manager.references(fork.blocks[0]), 1u);

  manager.Release(&fork);
  EXPECT_EQ(manager.active(), 0u);
}

TEST(BlockManagerTest, ASharedBlockThatIsFullIsCopiedToo) {
  BlockManager manager(3, Salt(1));
  BlockTable first = Compute(&manager, Count(0, 64)), fork;
  manager.Fork(first, 63, &fork);
  EXPECT_EQ(fork.indexed, 1u);

  std::vector<Copy> copies;
  ASSERT_TRUE(manager.Reserve(&fork, 63, 64, &copies));
  EXPECT_EQ(copies.size(), 1u);

  // Computed again, it equals a block of the index, which takes its place.
  manager.Index(Count(0, 64), &fork);
  EXPECT_EQ(fork.blocks, first.blocks);
  EXPECT_EQ(manager.active(), 2u);
}

TEST(BlockManagerTest, WithoutEnoughBlocksNothingChanges) {
  BlockManager manager(3, Salt(1));
  BlockTable first = Compute(&manager, Count(0, 40)), fork;
  manager.Fork(first, 39, &fork);
  const std::vector<int32_t> before = fork.blocks;
  std::vector<Copy> copies;

  EXPECT_FALSE(manager.Reserve(&fork, 39, 96, &copies))
      << "it needs a copy and one more block, and one is free";
  EXPECT_EQ(fork.blocks, before);
  EXPECT_THAT(copies, IsEmpty());
  EXPECT_TRUE(manager.Reserve(&fork, 39, 64, &copies));
  EXPECT_EQ(manager.available(), 0u);
}

// Applies random operations to a BlockManager. Check() counts all references anew, and compares
// what the blocks hold with what each sequence must have written.
class Checker {
 public:
  explicit Checker(uint64_t seed)
      : random_(seed),
        manager_(1 + static_cast<uint32_t>(random_.Below(40)), Salt(0)),
        contents_(manager_.blocks()) {}

  void Step() {
    const uint64_t what = random_.Below(100);
    if (what < 25) return Start();
    if (what < 35) return ForkOne();
    if (what < 80) return Write();
    if (what < 97) return End();

    // Other weights are loaded.
    salt_ = random_.Below(3);
    manager_.SetSalt(Salt(salt_));
    ++epoch_;
  }

  void Check() const {
    std::vector<uint32_t> references(manager_.blocks());
    for (const auto& [id, sequence] : live_) {
      for (int32_t block : sequence.table.blocks) ++references[block];
      ASSERT_GE(sequence.table.blocks.size() * kBlockTokens, sequence.computed);
      for (uint32_t at = 0; at < sequence.computed; ++at) {
        ASSERT_EQ(contents_[sequence.table.blocks[at / kBlockTokens]][at % kBlockTokens],
                  sequence.written[at])
            << "position " << at;
      }
    }

    uint32_t active = 0;
    for (uint32_t block = 0; block < manager_.blocks(); ++block) {
      ASSERT_EQ(references[block], manager_.references(static_cast<int32_t>(block)));
      active += references[block] > 0;
    }
    ASSERT_EQ(active, manager_.active());
  }

  void EndAll() {
    while (!live_.empty()) End();
    ASSERT_EQ(manager_.active(), 0u);
  }

  uint64_t hits() const { return hits_; }
  uint64_t refused() const { return refused_; }

 private:
  struct Sequence {
    Tokens tokens;
    BlockTable table;
    uint32_t computed = 0;
    // While it equals epoch_, everything was computed with the current salt.
    uint64_t epoch = 0;
    std::vector<uint64_t> written;  // A hash of prefix and weights, by position.
  };

  static uint64_t WrittenAt(const Sequence& s, uint32_t at, uint64_t salt) {
    const uint64_t before = at == 0 ? 7 : s.written[at - 1];
    return Mix64(Mix64(before + kGolden) ^ (static_cast<uint64_t>(s.tokens[at]) << 8) ^ salt);
  }

  Sequence* Any() {
    return live_.empty()
               ? nullptr
               : &std::next(live_.begin(), static_cast<ptrdiff_t>(random_.Below(live_.size())))
                      ->second;
  }

  void Start() {
    // Few kinds of tokens, so that prefixes meet.
    Sequence s;
    s.epoch = epoch_;
    const size_t length = 1 + random_.Below(130);
    const auto kind = static_cast<int32_t>(random_.Below(3));
    for (size_t i = 0; i < length; ++i)
      s.tokens.push_back(kind + (i > 70 ? static_cast<int32_t>(random_.Below(2)) : 0));

    s.computed = manager_.Match(absl::MakeConstSpan(s.tokens).first(length - 1), &s.table);
    hits_ += s.computed > 0;
    for (uint32_t at = 0; at < s.computed; ++at) s.written.push_back(WrittenAt(s, at, salt_));
    live_[next_++] = std::move(s);
  }

  void ForkOne() {
    Sequence* from = Any();
    if (from == nullptr || from->computed < 2 || from->epoch != epoch_) return;
    Sequence s;
    s.epoch = epoch_;
    s.computed = 1 + static_cast<uint32_t>(random_.Below(from->computed - 1));
    s.tokens.assign(from->tokens.begin(), from->tokens.begin() + s.computed);
    s.tokens.push_back(from->tokens[s.computed - 1] + static_cast<int32_t>(random_.Below(2)));
    s.written.assign(from->written.begin(), from->written.begin() + s.computed);
    manager_.Fork(from->table, s.computed, &s.table);
    live_[next_++] = std::move(s);
  }

  void Write() {
    Sequence* s = Any();
    if (s == nullptr) return;
    const auto count = static_cast<uint32_t>(1 + random_.Below(50));
    while (s->tokens.size() < s->computed + count)
      s->tokens.push_back(static_cast<int32_t>(random_.Below(3)));
    std::vector<Copy> copies;
    const uint32_t available = manager_.available();
    if (!manager_.Reserve(&s->table, s->computed, s->computed + count, &copies)) {
      ++refused_;
      ASSERT_EQ(available, manager_.available());

      // It may need the new blocks and a copy of the one that it goes on in.
      ASSERT_GT(BlocksFor(s->computed + count) - BlocksFor(s->computed) + 1, available)
          << "there was room";
      return;
    }

    for (const Copy& copy : copies) contents_[copy.to] = contents_[copy.from];
    for (uint32_t at = s->computed; at < s->computed + count; ++at) {
      const int32_t block = s->table.blocks[at / kBlockTokens];
      ASSERT_EQ(manager_.references(block), 1u) << "a shared block is written";
      ASSERT_FALSE(manager_.indexed(block)) << "an indexed block is written";
      s->written.push_back(WrittenAt(*s, at, salt_));
      contents_[block][at % kBlockTokens] = s->written[at];
    }

    s->computed += count;
    if (s->epoch == epoch_)
      manager_.Index(absl::MakeConstSpan(s->tokens).first(s->computed), &s->table);
  }

  void End() {
    if (live_.empty()) return;
    const auto it = std::next(live_.begin(), static_cast<ptrdiff_t>(random_.Below(live_.size())));
    manager_.Release(&it->second.table);
    live_.erase(it);
  }

  SplitMix64 random_;
  BlockManager manager_;
  std::vector<std::array<uint64_t, kBlockTokens>> contents_;  // What the pool's positions hold.
  std::map<uint64_t, Sequence> live_;
  uint64_t next_ = 0, salt_ = 0, epoch_ = 0, hits_ = 0, refused_ = 0;
};

TEST(BlockManagerTest, AHundredThousandRandomOperationsKeepContentsAndReferencesTrue) {
  uint64_t hits = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 50 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Checker checker(seed);
    for (int i = 0; i < 2000 && !HasFatalFailure(); ++i) {
      checker.Step();
      checker.Check();
    }
    if (!HasFatalFailure()) checker.EndAll();
    hits += checker.hits();
    refused += checker.refused();
  }

  EXPECT_GT(hits, 500u);
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace sluice
