#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/tokenizer/decoder.h"

namespace sluice {

// Text to token ids and back, as a Hugging Face `tokenizer.json` says, equal to the reference library on what it accepts.
//
// Accepted: BPE (byte-level, or SentencePiece style with byte fallback); normalizers Sequence, Prepend, Replace of a string;
// pre-tokenizers Sequence, Split by a regular expression (Isolated), ByteLevel, or none; post-processors TemplateProcessing
// (single), ByteLevel, or none; decoders Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, or none. Anything else is an
// error at load that names the component: never an approximation.
//
// Immutable, so thread-safe.
class Tokenizer {
 public:
  // INVALID_ARGUMENT: no valid JSON, or a value out of place. UNIMPLEMENTED: a component this reader does not have.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(absl::string_view json);
  // Reads `path`, at most 64 MiB.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  ~Tokenizer();

  struct EncodeOptions {
    bool add_special = true;      // What the post-processor adds, such as a leading <s>.
    bool parse_special = true;    // Added tokens written inside the text become their ids; false: they are plain text.
  };
  // INVALID_ARGUMENT: `text` is no UTF-8, or holds a character that the vocabulary cannot express.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options) const;

  // Bytes that form no UTF-8 become U+FFFD. Ids outside the vocabulary give nothing. `skip_special` leaves added special
  // tokens out.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const;

  std::optional<int32_t> TokenId(absl::string_view token) const;
  // For Detokenizer: what `id` puts into the decoder's stream; nothing for ids outside the vocabulary and for left-out tokens.
  std::optional<absl::string_view> Piece(int32_t id, bool skip_special) const;
  const Decoder& decoder() const;
  int32_t vocab_size() const;  // Highest id + 1, added tokens included.

 private:
  class Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
