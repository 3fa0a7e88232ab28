#include "common/tokenizer/aligned_text.h"

#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sluice {

std::pair<uint32_t, uint32_t> AlignedText::OriginOf(size_t byte) const {
  if (rewritten_) return track_ ? origin_[byte] : std::make_pair(0u, 0u);
  size_t first = byte;
  while ((static_cast<uint8_t>(view_[first]) & 0xC0) == 0x80) --first;
  return {first, first + Utf8SequenceLength(view_[first])};
}

AlignedText::AlignedText(const AlignedText& whole, Span part)
    : view_(whole.view_.substr(part.begin, part.size())),
      // The origins of a rewritten text, which are copied below, stay relative to whole.begin_.
      begin_(whole.begin_ + (whole.rewritten_ ? 0 : part.begin)),
      track_(whole.track_),
      rewritten_(whole.rewritten_) {
  if (rewritten_ && track_)
    origin_.assign(whole.origin_.begin() + part.begin, whole.origin_.begin() + part.end);
}

Span AlignedText::Origin(Span part) const {
  if (part.size() == 0 || (rewritten_ && !track_)) return {0, 0};
  return {begin_ + OriginOf(part.begin).first, begin_ + OriginOf(part.end - 1).second};
}

void AlignedText::Builder::Copy(Span part) {
  out_.append(text_->view_.data() + part.begin, part.size());
  if (!text_->track_) return;
  for (size_t i = part.begin; i < part.end; ++i) origin_.push_back(text_->OriginOf(i));
}

void AlignedText::Builder::Insert(absl::string_view content, size_t like) {
  out_.append(content.data(), content.size());
  if (text_->track_ && !content.empty())
    origin_.resize(out_.size(),
                   like < text_->view_.size() ? text_->OriginOf(like) : std::make_pair(0u, 0u));
}

void AlignedText::Builder::Finish() {
  SLUICE_CHECK(!text_->track_ || origin_.size() == out_.size());
  text_->text_ = std::move(out_);
  text_->view_ = text_->text_;
  text_->origin_ = std::move(origin_);
  text_->rewritten_ = true;
}

void AlignedText::Apply(absl::Span<const Edit> edits, size_t skipped_characters) {
  Builder builder(this);
  size_t old = 0;
  const auto step = [&] { old += old < view_.size() ? Utf8SequenceLength(view_[old]) : 0; };
  for (; skipped_characters > 0; --skipped_characters) step();
  std::string character;
  for (const Edit& edit : edits) {
    character.clear();
    AppendUtf8(edit.code_point, &character);
    // Before the first character, old - 1 wraps around, which Insert() treats as "no origin".
    builder.Insert(character, edit.change > 0 ? old - 1 : old);
    for (int n = edit.change; n <= 0; ++n) step();
  }
  builder.Finish();
}

void AlignedText::Replace(absl::Span<const Span> matches, absl::string_view content) {
  if (matches.empty()) return;
  Builder builder(this);
  size_t done = 0;
  for (const Span& match : matches) {
    builder.Copy({done, match.begin});
    builder.Insert(content, match.end - 1);
    done = match.end;
  }
  builder.Copy({done, view_.size()});
  builder.Finish();
}

void AlignedText::Keep(Span part) {
  if (part.begin == 0 && part.end == view_.size()) return;
  Builder builder(this);
  builder.Copy(part);
  builder.Finish();
}

}  // namespace sluice
