#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/numeric/int128.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// Caches the tokens of words, because texts repeat their words and merging is the expensive part.
// It is a table of fixed size in which each word has one place; a newer word replaces an older one.
// Words over 31 bytes or 7 tokens are not cached.
//
// Not thread-safe; ForThread() gives each thread its own cache.
class WordCache {
 public:
  WordCache() : slots_(new Slot[kSlots]()) {}

  // Returns this thread's cache for tokenizer number `tokenizer`. A thread has at most 4 caches of
  // 2 MiB; the least recently used one is replaced.
  static WordCache& ForThread(uint64_t tokenizer);

  struct Slot {     // Has the size of one cache line.
    uint8_t bytes;  // Length of the word; 0: free.
    char word[31];
    int32_t count;
    int32_t ids[7];
  };
  static_assert(sizeof(Slot) == 64);

  // Returns the slot of `word`, which may hold another word.
  Slot& At(absl::string_view word) { return slots_[Hash(word) >> (64 - kBits)]; }
  static bool Holds(const Slot& slot, absl::string_view word) {
    return slot.bytes == word.size() && std::memcmp(slot.word, word.data(), word.size()) == 0;
  }
  static bool Fits(absl::string_view word) { return word.size() <= sizeof(Slot::word); }
  template <typename Symbols>
  static void Put(absl::string_view word, const Symbols& symbols, Slot* slot) {
    if (symbols.size() > std::size(slot->ids)) return;
    slot->bytes = static_cast<uint8_t>(word.size());
    std::memcpy(slot->word, word.data(), word.size());
    slot->count = static_cast<int32_t>(symbols.size());
    for (size_t i = 0; i < symbols.size(); ++i) slot->ids[i] = symbols[i].id;
  }

 private:
  static constexpr int kBits = 15;
  static constexpr size_t kSlots = size_t{1} << kBits;

  // Loads 1 to 8 bytes; each of them affects the result.
  static uint64_t Load(const char* p, size_t n) {
    uint64_t v = 0;
    if (n == 8) {
      std::memcpy(&v, p, 8);
    } else if (n >= 4) {
      uint32_t low = 0, high = 0;
      std::memcpy(&low, p, 4);
      std::memcpy(&high, p + n - 4, 4);
      v = static_cast<uint64_t>(high) << 32 | low;
    } else {
      v = static_cast<uint64_t>(static_cast<uint8_t>(p[0])) |
          static_cast<uint64_t>(static_cast<uint8_t>(p[n / 2])) << 8 |
          static_cast<uint64_t>(static_cast<uint8_t>(p[n - 1])) << 16;
    }
    return v;
  }
  static uint64_t Mix(uint64_t a, uint64_t b) {
    const absl::uint128 product = absl::uint128(a) * b;
    return absl::Uint128Low64(product) ^ absl::Uint128High64(product);
  }
  static uint64_t Hash(absl::string_view word) {
    constexpr uint64_t kA = 0x9E3779B97F4A7C15, kB = 0xD6E8FEB86659FD93;
    uint64_t h = word.size() * kB;
    const char* p = word.data();
    size_t n = word.size();
    for (; n > 8; p += 8, n -= 8) h = Mix(h ^ Load(p, 8), kA);
    return n == 0 ? h : Mix(h ^ Load(p, n), kA);
  }

  const std::unique_ptr<Slot[]> slots_;
};

}  // namespace sluice
