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

// Token ids to text, one token at a time. What it gives, put together, is what Tokenizer::Decode
// gives for the whole list, cut at the first stop string. Held back: a UTF-8 sequence that is not
// complete; a run of byte-fallback tokens, for one later byte can make all of it U+FFFD; a tail
// that may begin a stop string. So a stop string whose characters are spelled in byte-fallback
// tokens is seen at the token behind them.
//
// One user at a time; the tokenizer may be shared.
class Detokenizer {
 public:
  struct Options {
    bool skip_special = true;        // Special added tokens give no text.
    std::vector<std::string> stops;  // As StopMatcher::Create.
  };

  // `tokenizer` outlives it. INVALID_ARGUMENT: a stop string that StopMatcher refuses.
  static absl::StatusOr<std::unique_ptr<Detokenizer>> Create(const Tokenizer* tokenizer,
                                                             Options options);

  // What comes before the text, such as the prompt: its text is not given and holds no stop string,
  // but the text continues it (no leading space is taken off; bytes at its end and the next token's
  // may be one character). Before any Push.
  void Prime(absl::Span<const int32_t> ids);

  // Takes the next token and appends to *out the text that is now certain. True: a stop string is
  // complete; the text ends before it, and later tokens give nothing.
  bool Push(int32_t id, std::string* out);

  // No token follows: appends what was held back, unless a stop string was found. True: one is
  // complete, maybe only now.
  bool Finish(std::string* out);

  int matched_stop() const { return matcher_.matched(); }  // Index in Options::stops; -1: none.

  Detokenizer(const Detokenizer&) = delete;  // The stream holds the address of text_.

 private:
  Detokenizer(const Tokenizer* tokenizer, bool skip_special, StopMatcher matcher);
  bool Take(std::string* out);

  const Tokenizer* const tokenizer_;
  const bool skip_special_;
  StopMatcher matcher_;
  std::string text_;  // Out of the stream, not yet through the matcher.
  Decoder::Stream stream_;
};

}  // namespace sluice
