#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// Byte-pair encoding of one word: characters are merged pair by pair, the pair of the lowest rank first, the leftmost of
// equals. O(n log n) in the word's length.
//
// Immutable after Parse, so thread-safe.
class Bpe {
 public:
  // `model`: the object `model` of a tokenizer.json. Errors as Tokenizer::Parse.
  static absl::StatusOr<Bpe> Parse(const nlohmann::ordered_json& model);

  // Appends the ids of `word` (UTF-8). INVALID_ARGUMENT: a character outside the vocabulary, with neither byte fallback nor
  // an unknown token.
  absl::Status EncodeWord(absl::string_view word, std::vector<int32_t>* ids) const;

  std::optional<int32_t> Id(absl::string_view token) const;
  const std::vector<std::string>& tokens() const { return tokens_; }  // By id; gaps are empty.

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  absl::StatusOr<std::vector<int32_t>> Characters(absl::string_view word) const;

  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<std::string> tokens_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // Key: left id << 32 | right id.
  std::optional<int32_t> unknown_;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  std::vector<int32_t> byte_ids_;  // Of <0x00>..<0xFF>, if byte_fallback_.
};

}  // namespace sluice
