#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/stop_matcher.h"

namespace sluice {
class Tokenizer;

// Turns token ids into text, one token at a time. The pieces joined are what Tokenizer::Decode()
// gives for the whole list, cut at the first stop string. It holds back an incomplete UTF-8
// sequence, a run of byte-fallback tokens (one more byte can turn all of it into U+FFFD), and an
// end of the text that may begin a stop string. So a stop string that is spelled in byte-fallback
// tokens is found at the token after them.
//
// Not thread-safe; several detokenizers may share a tokenizer.
class Detokenizer {
 public:
  struct Options {
    bool skip_special = true;        // Leave out the text of special added tokens.
    std::vector<std::string> stops;  // As StopMatcher::Create().
  };

  // `tokenizer` must outlive it. INVALID_ARGUMENT: StopMatcher refuses a stop string.
  static absl::StatusOr<std::unique_ptr<Detokenizer>> Create(const Tokenizer* tokenizer,
                                                             Options options);

  // Sets what comes before the text, such as the prompt. Its own text is not returned and not
  // searched for stop strings, but the text continues it: no leading space is removed, and bytes at
  // its end can form a character with the next token. Call it before the first Push().
  void Prime(absl::Span<const int32_t> ids);

  // Takes the next token and appends to *out the text that is now certain. Returns true if a stop
  // string is complete; the text ends before it, and later tokens give nothing.
  bool Push(int32_t id, std::string* out);

  // No token follows. Appends what was held back, unless a stop string was found. Returns true if a
  // stop string is complete, perhaps only now.
  bool Finish(std::string* out);

  int matched_stop() const { return matcher_.matched(); }  // Index in Options::stops; -1: none.

  Detokenizer(const Detokenizer&) = delete;  // The stream keeps the address of text_.

 private:
  Detokenizer(const Tokenizer* tokenizer, bool skip_special, StopMatcher matcher);
  bool FeedMatcher(std::string* out);

  const Tokenizer* const tokenizer_;
  const bool skip_special_;
  StopMatcher matcher_;
  std::string text_;  // Text from the stream that the matcher has not seen.
  Decoder::Stream stream_;
};

}  // namespace sluice
