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

// Converts text to token ids and back, as a Hugging Face `tokenizer.json` defines it. For every
// file that it accepts, it gives the same results as the reference library (tokenizers 0.23).
//
// It accepts BPE models, with the normalizers, pre-tokenizers, post-processors and decoders that
// normalizer.h, pre_tokenizer.h, post_processor.h and decoder.h list. Anything else is an error
// when the file is loaded, which names the place in the file; nothing is approximated. As in the
// reference library, a character that the vocabulary cannot express gives no token if there is no
// unknown token.
//
// Immutable, so thread-safe. Each thread that encodes keeps a cache of up to 2 MiB per tokenizer
// (word_cache.h).
class Tokenizer {
 public:
  static constexpr size_t kMaxText = 64 << 20;  // Bytes of one text.

  // INVALID_ARGUMENT: the file is not valid JSON, has a wrong value, or exceeds a limit
  // (TokenizerFile).
  // UNIMPLEMENTED: this reader does not support a component.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(absl::string_view json);
  // Reads `path`, at most 64 MiB. Errors also as ReadFile().
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  ~Tokenizer();

  struct EncodeOptions {
    bool add_special = true;  // Add what the post-processor adds, such as a leading <s>.
    // Special tokens written inside the text become their ids. False: they are treated as plain
    // text.
    bool parse_special = true;
  };
  // INVALID_ARGUMENT: `text` is not UTF-8, or longer than kMaxText.
  // RESOURCE_EXHAUSTED: a pattern of the file exceeded its limits.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              const EncodeOptions& options) const;

  struct Encoding {
    std::vector<int32_t> ids;
    // For each id, the bytes of the text that the token comes from, as whole characters; tokens
    // that share a character overlap. {0, 0} for tokens that the post-processor added.
    std::vector<Span> offsets;
  };
  absl::StatusOr<Encoding> EncodeWithOffsets(absl::string_view text,
                                             const EncodeOptions& options) const;

  // Bytes that are not UTF-8 become U+FFFD. Ids outside the vocabulary give nothing. With
  // `skip_special`, special tokens give nothing.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const;

  // Returns the bytes that `id` adds to a text that has already begun; they may be a part of a
  // character. Special tokens give their own form, ids outside the vocabulary nothing.
  std::string TokenBytes(int32_t id) const;

  std::optional<int32_t> TokenId(absl::string_view token) const;
  // For Detokenizer: what `id` puts into the decoder's stream; nullopt for ids outside the
  // vocabulary and for tokens that are left out.
  std::optional<absl::string_view> Piece(int32_t id, bool skip_special) const;
  const Decoder& decoder() const;
  int32_t vocab_size() const;  // Highest id + 1, including added tokens.

 private:
  class Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
