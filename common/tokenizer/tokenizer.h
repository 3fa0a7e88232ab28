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

// Text to token ids and back, as a Hugging Face `tokenizer.json` says, equal to the reference
// library (tokenizers 0.23) on what it accepts.
//
// Accepted: BPE; normalizers, pre-tokenizers, post-processors and decoders as normalizer.h,
// pre_tokenizer.h, post_processor.h and decoder.h list them. Anything else is an error at load that
// names its place in the file: never an approximation. A character that the vocabulary cannot
// express and that no unknown token stands for gives no token, as there.
//
// Immutable, so thread-safe. Each thread that encodes keeps up to 2 MiB of words per tokenizer
// (word_cache.h).
class Tokenizer {
 public:
  static constexpr size_t kMaxText = 64 << 20;  // Bytes of one text.

  // INVALID_ARGUMENT: no valid JSON, a value out of place, or over a limit (TokenizerFile).
  // UNIMPLEMENTED: a component that this reader does not have.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(absl::string_view json);
  // Reads `path`, at most 64 MiB.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  ~Tokenizer();

  struct EncodeOptions {
    bool add_special = true;  // What the post-processor adds, such as a leading <s>.
    // Special tokens written inside the text become their ids; false: they are plain text.
    bool parse_special = true;
  };
  // INVALID_ARGUMENT: `text` is no UTF-8, or over kMaxText.
  // RESOURCE_EXHAUSTED: a pattern of the file ran into its limits.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              const EncodeOptions& options) const;

  struct Encoding {
    std::vector<int32_t> ids;
    // [ids]: the bytes of the text that each token stems from, whole characters; tokens that share
    // one overlap. Empty, {0, 0}: of tokens that the post-processor added.
    std::vector<Span> offsets;
  };
  absl::StatusOr<Encoding> EncodeWithOffsets(absl::string_view text,
                                             const EncodeOptions& options) const;

  // Bytes that form no UTF-8 become U+FFFD. Ids outside the vocabulary give nothing. `skip_special`
  // leaves special tokens out.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const;

  // What `id` puts into a text that has begun, special tokens their own form: bytes, which may be a
  // part of a character; none for ids outside the vocabulary.
  std::string TokenBytes(int32_t id) const;

  std::optional<int32_t> TokenId(absl::string_view token) const;
  // For Detokenizer: what `id` puts into the decoder's stream; nothing for ids outside the
  // vocabulary and for left-out tokens.
  std::optional<absl::string_view> Piece(int32_t id, bool skip_special) const;
  const Decoder& decoder() const;
  int32_t vocab_size() const;  // Highest id + 1, added tokens included.

 private:
  class Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
