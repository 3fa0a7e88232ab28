#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/pattern.h"

namespace sluice {

// One decoder of the chain: takes tokens and passes text to `next`. A token may come in several
// pieces; `ends` is true for the last.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void Feed(absl::string_view piece, bool ends) = 0;
  // No token follows: passes on what was held back, and finishes `next`.
  virtual void Finish() = 0;
  DecodeStage* next = nullptr;
};

// The chain `decoder` of a tokenizer.json: turns token strings into text. Each decoder is a stage
// that holds back only what later tokens may change. Therefore decoding token by token gives the
// same text as decoding the whole list.
//
// Immutable, so thread-safe; a Stream may be used by one thread at a time.
class Decoder {
 public:
  Decoder() = default;  // No decoder: joins tokens with spaces, as the reference library does.

  // Supports Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace. Errors as
  // Tokenizer::Parse().
  static absl::StatusOr<Decoder> Parse(const Component& component);

  // Applies to `token` the first decoders of the chain, as far as they look at single tokens. This
  // is done once for each token of the vocabulary. RESOURCE_EXHAUSTED: a pattern exceeded its
  // limits.
  absl::StatusOr<std::string> Prepare(absl::string_view token) const;

  // Returns the bytes that a prepared token adds to a text that has already begun; they may be a
  // part of a character. Joined, they give the text, except at its two ends and for bytes that are
  // not UTF-8.
  std::string Bytes(absl::string_view prepared) const;

  class Stream {
   public:
    // `decoder` must outlive the stream. Text is appended to *out.
    Stream(const Decoder* decoder, std::string* out);
    void Feed(absl::string_view prepared) { first_->Feed(prepared, /*ends=*/true); }
    void Finish() { first_->Finish(); }

   private:
    std::vector<std::unique_ptr<DecodeStage>> stages_;
    DecodeStage* first_;
  };

 private:
  struct Step {
    enum Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace } kind;
    std::shared_ptr<const Pattern> pattern;  // kReplace.
    // kReplace: the replacement. kStrip, kMetaspace: the character.
    std::string content;
    int start = 0, stop = 0;   // kStrip: how many at each end.
    bool drops_first = false;  // kMetaspace: the character is removed from the first token.
  };
  static std::unique_ptr<DecodeStage> MakeStage(const Step& step, bool prepared);
  absl::Status AddStep(const Component& component);

  std::vector<Step> steps_;
  // Number of steps at the start that Prepare() does. If the next step is ByteLevel, Prepare() also
  // turns the token's spelling into bytes.
  size_t prepared_ = 0;
  bool joins_with_spaces_ = true;
};

}  // namespace sluice
