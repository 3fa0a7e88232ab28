#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/normalizer.h"

namespace sluice {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;      // Decoding can leave it out; encoding can treat it as plain text.
  bool normalized = false;   // Searched in the normalized text, in its normalized form.
  bool single_word = false;  // Matches only if no word character is next to it.
  bool lstrip = false, rstrip = false;  // Includes the white space on that side.
  // `content`, or its normalized form: what is searched, and what decoding gives.
  std::string form;
};

// The list `added_tokens`: strings that become their own ids wherever they occur. At each place the
// longest one matches.
//
// Immutable, so thread-safe.
class AddedTokens {
 public:
  static constexpr size_t kMaxTokens = 200'000, kMaxContent = 512;

  // INVALID_ARGUMENT: an entry is malformed, empty or too long, or has another id than the
  // reference library gives it: that of the model's token with the same content, else the next free
  // id.
  static absl::StatusOr<AddedTokens> Parse(const Component& root, const Bpe& bpe,
                                           const Normalizer& normalizer);

  struct Piece {
    Span span;
    const AddedToken* token;  // Null: plain text.
  };
  // Splits `text` into added tokens and plain text, and appends the pieces. `normalized` selects
  // the tokens to search for. Without `special`, special tokens are not searched for. Pieces can
  // overlap: the white space of one token may be another token.
  void Find(absl::string_view text, bool normalized, bool special,
            std::vector<Piece>* pieces) const;
  bool HasNormalized() const { return !normalized_.tokens.empty(); }

  const AddedToken* FindById(int32_t id) const;
  const AddedToken* FindByContent(absl::string_view content) const;
  int32_t id_end() const { return id_end_; }  // Highest id + 1; 0 if there are none.

 private:
  // Tokens sorted by their form; LongestAt() narrows the range down byte by byte.
  struct Index {
    std::vector<const AddedToken*> tokens;
    std::array<bool, 256> begins{};  // Whether a form begins with this byte.
    const AddedToken* LongestAt(absl::string_view text) const;
    void Build(std::vector<const AddedToken*> list);
  };

  std::vector<std::unique_ptr<const AddedToken>> tokens_;
  absl::flat_hash_map<int32_t, const AddedToken*> by_id_;
  absl::flat_hash_map<absl::string_view, const AddedToken*> by_content_;
  Index raw_, normalized_;
  int32_t id_end_ = 0;
};

}  // namespace sluice
