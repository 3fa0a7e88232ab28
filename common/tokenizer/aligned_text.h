#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/tokenizer/pattern.h"

namespace sluice {

// One character of a rewritten text. `change` 0: it takes the place of the next character of the
// old text; n > 0: it is new; -n: it takes the place of the next one, and the n behind that go.
struct Edit {
  uint32_t code_point;
  int change;
};

// A text on its way through normalizers and pre-tokenizers. It can tell for each of its bytes which
// bytes of the original text it stems from, as the reference library reckons that: a new character
// stems from what the one before it does.
//
// Until something rewrites it, it only borrows the original.
class AlignedText {
 public:
  // `text` is a part of the original, from its byte `begin` on. Without `track`, Origin of a
  // rewritten text is unknown.
  AlignedText(absl::string_view text, size_t begin, bool track)
      : view_(text), begin_(begin), track_(track) {}
  AlignedText(const AlignedText& whole, Span part);  // A part of another text, which outlives it.
  AlignedText(AlignedText&&) = delete;

  absl::string_view text() const { return view_; }
  bool tracked() const { return track_; }
  // Bytes of the original that the characters in `part` stem from. Of an unknown one: {0, 0}.
  Span Origin(Span part) const;

  // The whole text, its first characters left out.
  void Apply(absl::Span<const Edit> edits, size_t skipped_characters);
  void Replace(absl::Span<const Span> matches, absl::string_view content);
  void Keep(Span part);  // Only that.

  // Puts a new text together from parts of the old one.
  class Builder {
   public:
    explicit Builder(AlignedText* text) : text_(text) {
      out_.reserve(text->text().size() * 9 / 8 + 16);
    }
    void Copy(Span part);
    // That stems from what the byte `like` does.
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
  std::string text_;  // What view_ shows once rewritten.
  // By byte, relative to begin_, if rewritten and tracked.
  std::vector<std::pair<uint32_t, uint32_t>> origin_;
  bool rewritten_ = false;
};

}  // namespace sluice
