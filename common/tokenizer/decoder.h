#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/pattern.h"

namespace sluice {

// One decoder at work: tokens flow in, text flows out to `next`. A token may come in several
// pieces, `ends` with the last.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void Feed(absl::string_view piece, bool ends) = 0;
  virtual void Finish() = 0;  // No token follows: gives what was held back, and finishes `next`.
  DecodeStage* next = nullptr;
};

// The chain `decoder` of a tokenizer.json: token strings to text. Each decoder is a stage that
// holds back only what later tokens may change, so that decoding token by token equals decoding the
// whole list by construction.
//
// Immutable, so thread-safe; a Stream has one user.
class Decoder {
 public:
  Decoder() = default;  // No decoder: tokens joined by spaces, as the reference library does it.

  // Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace.
  static absl::StatusOr<Decoder> Parse(const Component& component);

  // What the leading decoders that see one token at a time make of `token`: done once for each
  // token of the vocabulary. RESOURCE_EXHAUSTED: a pattern ran into its limits.
  absl::StatusOr<std::string> Prepare(absl::string_view token) const;

  // What a token, prepared, puts into a text that has begun: its bytes, which may be a part of a
  // character. In a row they are the text but for what is at its ends, and for bytes that form no
  // UTF-8.
  std::string Bytes(absl::string_view prepared) const;

  class Stream {
   public:
    // `decoder` outlives it. Text is appended to *out.
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
    // kReplace: what goes in. kStrip, kMetaspace: the character.
    std::string content;
    int start = 0, stop = 0;   // kStrip: how many at either end.
    bool drops_first = false;  // kMetaspace: the first token loses its characters.
  };
  static std::unique_ptr<DecodeStage> Stage(const Step& step, bool prepared);
  absl::Status Add(const Component& component);

  std::vector<Step> steps_;
  size_t prepared_ = 0;  // Leading steps that Prepare does.
  bool joins_with_spaces_ = true;
};

}  // namespace sluice
