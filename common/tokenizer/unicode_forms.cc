#include "common/tokenizer/unicode_forms.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

const icu::Normalizer2& Instance(UnicodeForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* instance = nullptr;
  switch (form) {
    case UnicodeForm::kNfc: instance = icu::Normalizer2::getNFCInstance(error); break;
    case UnicodeForm::kNfd: instance = icu::Normalizer2::getNFDInstance(error); break;
    case UnicodeForm::kNfkc: instance = icu::Normalizer2::getNFKCInstance(error); break;
    case UnicodeForm::kNfkd: instance = icu::Normalizer2::getNFKDInstance(error); break;
  }
  SLUICE_CHECK(U_SUCCESS(error) && instance != nullptr);
  return *instance;
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

// The reference library's normal forms are of Unicode 12.0. Newer characters are left unchanged,
// and their neighbours do not combine across them.
bool IsNewer(UChar32 c) {
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] > 12 || (age[0] == 12 && age[1] > 0);
}

// The reference library's lower case is of Unicode 17, which is newer than ICU 72. These are the
// pairs that ICU lacks: first, last, lower case of the first.
struct NewLowercase {
  uint32_t first, last, lower;
};
constexpr NewLowercase kNewLowercase[] = {{0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},
                                          {0xA7CC, 0xA7CC, 0xA7CD},    {0xA7CE, 0xA7CE, 0xA7CF},
                                          {0xA7D2, 0xA7D2, 0xA7D3},    {0xA7D4, 0xA7D4, 0xA7D5},
                                          {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},
                                          {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB}};
uint32_t LowerOf(uint32_t c) {
  for (const NewLowercase& range : kNewLowercase) {
    if (c >= range.first && c <= range.last) return range.lower + (c - range.first);
  }
  return static_cast<uint32_t>(u_tolower(static_cast<UChar32>(c)));
}

// A character, its canonical combining class, and Edit::change.
struct Part {
  uint32_t code_point;
  uint8_t order;
  int change;
};

// Returns the full decomposition, with marks in canonical order.
std::vector<Part> Decompose(const icu::Normalizer2& form, absl::string_view text) {
  std::vector<Part> parts;
  size_t marks = 0;  // Where the marks after the last starter begin.
  icu::UnicodeString decomposed;
  const auto add = [&](UChar32 c, int change) {
    const uint8_t order = IsNewer(c) ? 0 : form.getCombiningClass(c);
    // A starter ends the run of marks, which are then sorted by class.
    if (order == 0) {
      std::stable_sort(parts.begin() + marks, parts.end(),
                       [](const Part& a, const Part& b) { return a.order < b.order; });
      marks = parts.size() + 1;
    }
    parts.push_back({static_cast<uint32_t>(c), order, change});
  };

  for (size_t at = 0; at < text.size(); at += Utf8SequenceLength(text[at])) {
    const UChar32 c = static_cast<UChar32>(DecodeUtf8(&text[at]));
    if (IsNewer(c) || !form.getDecomposition(c, decomposed)) {
      add(c, 0);
      continue;
    }
    for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1))
      add(decomposed.char32At(i), i == 0 ? 0 : 1);
  }

  std::stable_sort(parts.begin() + std::min(marks, parts.size()), parts.end(),
                   [](const Part& a, const Part& b) { return a.order < b.order; });
  return parts;
}

// Composes characters with the starter before them, in place. A character that disappears adds its
// change, minus one, to that of the starter.
void Compose(const icu::Normalizer2& form, std::vector<Part>* parts) {
  constexpr size_t kNone = ~size_t{0};
  size_t starter = kNone, kept = 0;
  int last_order = -1;  // Combining class of the last part kept after the starter; -1: none.
  for (const Part& part : *parts) {
    if (starter != kNone && (last_order < 0 || (last_order < part.order))) {
      const UChar32 whole = form.composePair(static_cast<UChar32>((*parts)[starter].code_point),
                                             static_cast<UChar32>(part.code_point));
      if (whole >= 0 && !IsNewer(whole)) {
        (*parts)[starter].code_point = static_cast<uint32_t>(whole);
        (*parts)[starter].change += part.change - 1;
        continue;
      }
    }
    const Part copy = part;
    (*parts)[kept] = copy;
    if (copy.order == 0) {
      starter = kept;
      last_order = -1;
    } else {
      last_order = copy.order;
    }
    ++kept;
  }
  parts->resize(kept);
}

}  // namespace

void Normalize(UnicodeForm form, AlignedText* text) {
  if (IsAscii(text->text())) return;
  const icu::Normalizer2& instance = Instance(form);
  UErrorCode error = U_ZERO_ERROR;
  if (instance.isNormalizedUTF8(
          icu::StringPiece(text->text().data(), static_cast<int32_t>(text->text().size())), error))
    return;
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  std::vector<Part> parts = Decompose(instance, text->text());
  if (composes) Compose(instance, &parts);
  std::vector<Edit> edits;
  for (const Part& part : parts) edits.push_back({part.code_point, part.change});
  text->Apply(edits, 0);
}

void Lowercase(AlignedText* text) {
  std::vector<Edit> edits;
  bool changed = false;
  for (size_t at = 0; at < text->text().size(); at += Utf8SequenceLength(text->text()[at])) {
    const uint32_t c = DecodeUtf8(&text->text()[at]);
    const uint32_t lower = LowerOf(c);
    changed = changed || lower != c;
    edits.push_back({lower, 0});
    // Capital I with a dot is the only character with two characters as its lower case.
    if (c == 0x130) edits.push_back({0x307, 1});
  }
  if (changed) text->Apply(edits, 0);
}

}  // namespace sluice
