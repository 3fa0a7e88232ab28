#include "common/tokenizer/detokenizer.h"

#include "common/base/status.h"
#include "common/tokenizer/tokenizer.h"

namespace sluice {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special, StopMatcher matcher)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      matcher_(std::move(matcher)),
      stream_(&tokenizer->decoder(), &text_) {}

absl::StatusOr<std::unique_ptr<Detokenizer>> Detokenizer::Create(const Tokenizer* tokenizer,
                                                                 Options options) {
  SLUICE_ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::Create(std::move(options.stops)));
  return std::unique_ptr<Detokenizer>(
      new Detokenizer(tokenizer, options.skip_special, std::move(matcher)));
}

void Detokenizer::Prime(absl::Span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (const auto piece = tokenizer_->Piece(id, skip_special_)) stream_.Feed(*piece);
    text_.clear();
  }
}

bool Detokenizer::Push(int32_t id, std::string* out) {
  if (const auto piece = tokenizer_->Piece(id, skip_special_)) stream_.Feed(*piece);
  return FeedMatcher(out);
}

bool Detokenizer::Finish(std::string* out) {
  stream_.Finish();
  const bool stopped = FeedMatcher(out);
  if (!stopped) matcher_.Finish(out);
  return stopped;
}

bool Detokenizer::FeedMatcher(std::string* out) {
  matcher_.Feed(text_, out);
  text_.clear();
  return matcher_.matched() >= 0;
}

}  // namespace sluice
