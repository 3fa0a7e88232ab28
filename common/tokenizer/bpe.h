#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/tokenizer_file.h"

namespace sluice {

// Byte-pair encoding of one word: characters are merged pair by pair, the pair of the lowest rank
// first, the leftmost of equals. O(n log n) in the word's length.
//
// Immutable, so thread-safe.
class Bpe {
 public:
  struct Symbol {
    int32_t id;
    uint32_t bytes;  // Of the word.
  };
  using Symbols = absl::InlinedVector<Symbol, 48>;

  // `model`: the object `model` without its lists, which come from `file`. `byte_level`: a word's
  // bytes, not its characters, are the symbols to begin with, spelled in the byte-level alphabet.
  // Errors as Tokenizer::Parse.
  static absl::StatusOr<Bpe> Create(const Component& model, TokenizerFile file, bool byte_level);

  // `word` (UTF-8, not empty) as symbols. A character outside the vocabulary, with neither byte
  // fallback nor an unknown token, gives none, as in the reference library.
  void Encode(absl::string_view word, Symbols* symbols) const;

  // Where a word may first be cut without changing its tokens, for no merge joins what meets there:
  // the length of the part before, or all. One text is one word in SentencePiece's models; its
  // parts repeat, and merging them takes less time than merging all.
  size_t CutAt(absl::string_view word) const;

  bool byte_level() const { return byte_level_; }
  std::optional<int32_t> Id(absl::string_view token) const;
  const std::vector<std::string>& tokens() const { return tokens_; }  // By id; gaps are empty.
  size_t size() const { return ids_.size(); }                         // Tokens.
  bool Has(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size() && !tokens_[id].empty();
  }

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  absl::Status ReadVocab(TokenizerFile* file);
  absl::Status ReadMerges(const TokenizerFile& file);
  void FindCuts();
  void First(absl::string_view word, Symbols* symbols) const;  // Before any merge.
  const Merge* Find(const Symbol& left, const Symbol& right) const;
  void MergeFew(Symbols* symbols) const;
  void MergeMany(Symbols* symbols) const;

  std::vector<std::string> tokens_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // Keys lie in tokens_.
  absl::flat_hash_map<uint64_t, Merge> merges_;          // Key: left id << 32 | right id.
  std::optional<int32_t> unknown_;
  bool byte_level_ = false, fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false;
  bool cuts_ = false;       // Whether words may be cut,
  bool all_bytes_ = false;  // and before any character, since none is unknown.
  // [last byte of a merge's left side << 8 | first byte of its right side]
  std::bitset<1 << 16> joined_;
  // Of the first symbols of bytes: their spelling, or <0x00>..<0xFF>; -1: none.
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace sluice
