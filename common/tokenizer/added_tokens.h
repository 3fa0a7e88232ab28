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
  bool special = false;      // Decoding can leave it out; encoding can take it for plain text.
  bool normalized = false;   // Looked for in the normalized text, as its own normalized form.
  bool single_word = false;  // Not with a word character next to it.
  bool lstrip = false, rstrip = false;  // Takes the spaces at that side along.
  std::string form;  // What is looked for, and decoded: `content`, or its normalized form.
};

// The list `added_tokens`: strings that become their own ids wherever they are written.
// Leftmost-longest.
//
// Immutable, so thread-safe.
class AddedTokens {
 public:
  static constexpr size_t kMaxTokens = 200'000, kMaxContent = 512;

  // INVALID_ARGUMENT: an entry of a wrong form, an empty or overlong one, or an id other than the
  // reference library's own: that of the model's token of the same content, else the next free one.
  static absl::StatusOr<AddedTokens> Parse(const Component& root, const Bpe& bpe,
                                           const Normalizer& normalizer);

  struct Piece {
    Span span;
    const AddedToken* token;  // Null: plain text.
  };
  // Appends what `text` consists of: added tokens that are `normalized` or not, and plain text.
  // Pieces can overlap where one token's spaces are another token. `special`: whether special
  // tokens count.
  void Find(absl::string_view text, bool normalized, bool special,
            std::vector<Piece>* pieces) const;
  bool AnyNormalized() const { return !normalized_.tokens.empty(); }

  const AddedToken* ById(int32_t id) const;
  const AddedToken* ByContent(absl::string_view content) const;
  int32_t id_end() const { return id_end_; }  // Highest id + 1; 0 if there are none.

 private:
  // Tokens by their form, sorted, to be narrowed down byte by byte.
  struct Index {
    std::vector<const AddedToken*> tokens;
    std::array<bool, 256> begins{};  // A form begins with this byte.
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
