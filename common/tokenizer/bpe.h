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

// Byte-pair encoding of one word. The word's characters are merged pair by pair: the pair of the
// lowest rank first, and of equal ranks the leftmost. Takes O(n log n) in the word's length.
//
// Immutable, so thread-safe.
class Bpe {
 public:
  struct Symbol {
    int32_t id;
    uint32_t bytes;  // Length of its part of the word.
  };
  using Symbols = absl::InlinedVector<Symbol, 48>;

  // `model` is the object `model` without its lists, which are in `file`. With `byte_level`,
  // encoding starts from the bytes of a word, spelled in the byte-level alphabet, not from its
  // characters. Errors as Tokenizer::Parse().
  static absl::StatusOr<Bpe> Create(const Component& model, TokenizerFile file, bool byte_level);

  // Encodes `word` (UTF-8, not empty). A character outside the vocabulary gives no symbol if there
  // is neither byte fallback nor an unknown token, as in the reference library.
  void Encode(absl::string_view word, Symbols* symbols) const;

  // Returns the length of the first part of `word` after which it may be cut without changing its
  // tokens, because no merge joins the characters that meet there; the whole length if there is no
  // such place. In SentencePiece models a whole text is one word. Its parts repeat, so they can be
  // cached, and merging parts is faster than merging everything.
  size_t CutAt(absl::string_view word) const;

  bool byte_level() const { return byte_level_; }
  std::optional<int32_t> Id(absl::string_view token) const;
  // By id; unused ids are empty.
  const std::vector<std::string>& tokens() const { return tokens_; }
  size_t size() const { return ids_.size(); }  // Number of tokens.
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
  void DecideCuts();
  // Appends the symbols of the word's characters or bytes, before any merge.
  void AppendSymbols(absl::string_view word, Symbols* symbols) const;
  const Merge* FindMerge(const Symbol& left, const Symbol& right) const;
  void MergeFew(Symbols* symbols) const;
  void MergeMany(Symbols* symbols) const;

  std::vector<std::string> tokens_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // The keys point into tokens_.
  absl::flat_hash_map<uint64_t, Merge> merges_;          // Key: left id << 32 | right id.
  std::optional<int32_t> unknown_;
  bool byte_level_ = false, fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false;
  bool may_cut_ = false;  // Whether words may be cut at all.
  // Every byte has a token, so no character is unknown, and a word may be cut before any character.
  bool all_bytes_ = false;
  // Bit a << 8 | b: whether a merge has a left side that ends with byte a and a right side that
  // begins with byte b.
  std::bitset<1 << 16> joined_;
  // Token id of each byte: of its spelling, or of <0x00>..<0xFF>; -1 if there is none.
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace sluice
