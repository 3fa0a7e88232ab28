#include "common/tokenizer/decode_stages.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"

namespace sluice {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

int HexDigit(char c) {
  return c >= '0' && c <= '9' ? c - '0'
         : absl::ascii_tolower(c) >= 'a' && absl::ascii_tolower(c) <= 'f'
             ? absl::ascii_tolower(c) - 'a' + 10
             : -1;
}

}  // namespace

int FallbackByte(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
  // The reference library's parser accepts a sign here.
  if (token[3] == '+') return HexDigit(token[4]);
  const int high = HexDigit(token[3]), low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void WholeTokenStage::Feed(absl::string_view piece, bool ends) {
  if (ends && !open_) return HandleToken(piece);
  gathered_.append(piece.data(), piece.size());
  open_ = !ends;
  if (!ends) return;
  HandleToken(gathered_);
  gathered_.clear();
}

void WholeTokenStage::Finish() { next->Finish(); }

void ByteLevelStage::Feed(absl::string_view piece, bool ends) {
  if (!spelled_) return FeedBytes(piece);
  token_.append(piece.data(), piece.size());
  if (!ends) return;
  FeedBytes(ByteLevelAlphabet::Get().Bytes(token_));
  token_.clear();
}

void ByteLevelStage::FeedBytes(absl::string_view bytes) {
  if (!pending_.empty()) {
    pending_.append(bytes.data(), bytes.size());
    bytes = pending_;
  }
  const size_t tail = Utf8IncompleteTail(bytes);
  const absl::string_view sure = bytes.substr(0, bytes.size() - tail);
  if (IsUtf8(sure)) {
    next->Feed(sure, false);
  } else {
    next->Feed(Utf8Lossy(sure), false);
  }
  pending_ = std::string(bytes.substr(bytes.size() - tail));
}

void ByteLevelStage::Finish() {
  next->Feed(Utf8Lossy(pending_), true);
  pending_.clear();
  next->Finish();
}

void ReplaceStage::HandleToken(absl::string_view token) {
  const auto replaced = pattern_->Replace(token, content_);
  // If a pattern reaches its limits, the token stays as it is.
  next->Feed(replaced.ok() ? absl::string_view(*replaced) : token, true);
}

void ByteFallbackStage::HandleToken(absl::string_view token) {
  const int byte = FallbackByte(token);
  if (byte >= 0) {
    run_.push_back(static_cast<char>(byte));
    return;
  }
  Flush();
  next->Feed(token, true);
}

void ByteFallbackStage::Flush() {
  if (run_.empty()) return;
  if (IsUtf8(run_)) {
    next->Feed(run_, true);
  } else {
    for (size_t i = 0; i < run_.size(); ++i) next->Feed(kReplacement, true);
  }
  run_.clear();
}

void ByteFallbackStage::Finish() {
  Flush();
  next->Finish();
}

void StripStage::Feed(absl::string_view piece, bool ends) {
  while (at_start_ && taken_ < start_ && absl::StartsWith(piece, character_)) {
    piece.remove_prefix(character_.size());
    ++taken_;
  }
  if (!piece.empty()) at_start_ = false;
  int tail = 0;  // Characters at the piece's end that may be at the end of the token.
  absl::string_view body = piece;
  while (tail < stop_ && absl::EndsWith(body, character_)) {
    body.remove_suffix(character_.size());
    ++tail;
  }

  // The held characters are copies of character_. They are inside the token if another character
  // follows them. If only more copies follow, all but the last stop_ copies are inside.
  const int held_before = held_;
  held_ = body.empty() ? held_ + tail : tail;
  const int released = body.empty() ? std::max(0, held_ - stop_) : held_before;
  if (body.empty()) held_ -= released;
  for (int i = 0; i < released; ++i) next->Feed(character_, false);
  next->Feed(body, ends);
  if (ends) {
    taken_ = held_ = 0;
    at_start_ = true;
  }
}

void MetaspaceStage::HandleToken(absl::string_view token) {
  next->Feed(absl::StrReplaceAll(token, {{character_, dropping_ ? "" : " "}}), true);
  dropping_ = false;
}

void JoinStage::HandleToken(absl::string_view token) {
  if (!first_) next->Feed(" ", false);
  first_ = false;
  next->Feed(token, true);
}

}  // namespace sluice
