#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/tokenizer/pattern.h"

namespace sluice {

// One character of a rewritten text. change = 0: it replaces the next character of the old text.
// change = n > 0: it is new. change = -n < 0: it replaces the next character, and the n characters
// after that are removed.
struct Edit {
  uint32_t code_point;
  int change;
};

// A text that passes through normalizers and pre-tokenizers. For each byte it knows which bytes of
// the original text it comes from. As in the reference library, a new character comes from the same
// bytes as the one before it.
//
// Until it is rewritten, it only borrows the original text. Not thread-safe.
class AlignedText {
 public:
  // `text` is a part of the original, which starts at its byte `begin`. Without `track`, the origin
  // of a rewritten text is unknown.
  AlignedText(absl::string_view text, size_t begin, bool track)
      : view_(text), begin_(begin), track_(track) {}
  // A part of another text, which must outlive it.
  AlignedText(const AlignedText& whole, Span part);
  AlignedText(AlignedText&&) = delete;

  absl::string_view text() const { return view_; }
  bool tracked() const { return track_; }
  // Returns the bytes of the original that the characters in `part` come from; {0, 0} if unknown.
  Span Origin(Span part) const;

  // Rewrites the whole text by `edits`; the first `skipped_characters` are removed before that.
  void Apply(absl::Span<const Edit> edits, size_t skipped_characters);
  void Replace(absl::Span<const Span> matches, absl::string_view content);
  void Keep(Span part);  // Removes everything else.

  // Builds a new text from parts of the old one.
  class Builder {
   public:
    explicit Builder(AlignedText* text) : text_(text) {
      out_.reserve(text->text().size() * 9 / 8 + 16);
    }
    void Copy(Span part);
    // Inserts a new text with the same origin as the byte `like` of the old text.
    void Insert(absl::string_view content, size_t like);
    size_t size() const { return out_.size(); }
    void Finish();

   private:
    AlignedText* const text_;
    std::string out_;
    std::vector<std::pair<uint32_t, uint32_t>> origin_;
  };

 private:
  std::pair<uint32_t, uint32_t> OriginOf(size_t byte) const;  // Relative to begin_.

  absl::string_view view_;
  const size_t begin_;
  const bool track_;
  std::string text_;  // The text of view_ after a rewrite.
  // For each byte of a rewritten, tracked text: its origin, relative to begin_.
  std::vector<std::pair<uint32_t, uint32_t>> origin_;
  bool rewritten_ = false;
};

}  // namespace sluice
