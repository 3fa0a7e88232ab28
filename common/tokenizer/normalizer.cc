#include "common/tokenizer/normalizer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/tokenizer/char_class.h"

namespace sluice {
namespace {
constexpr size_t kMaxNormalizers = 64, kMaxText = 256 << 20;
constexpr std::pair<const char*, UnicodeForm> kForms[] = {{"NFC", UnicodeForm::kNfc},
                                                          {"NFD", UnicodeForm::kNfd},
                                                          {"NFKC", UnicodeForm::kNfkc},
                                                          {"NFKD", UnicodeForm::kNfkd}};
}  // namespace

Span StripSpaces(absl::string_view text, bool left, bool right) {
  Span kept{0, text.size()};
  const auto space = [&](size_t at) {
    return CharTable::Get().Mask(DecodeUtf8(&text[at])) == kSpaceMask;
  };
  while (left && kept.begin < kept.end && space(kept.begin))
    kept.begin += Utf8SequenceLength(text[kept.begin]);
  while (right && kept.begin < kept.end) {
    size_t last = kept.end - 1;
    while ((static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    if (!space(last)) break;
    kept.end = last;
  }
  return kept;
}

absl::StatusOr<Normalizer> Normalizer::Parse(const Component& component) {
  Normalizer normalizer;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Component> parts, component.Flatten("normalizers"));
  for (const Component& part : parts) SLUICE_RETURN_IF_ERROR(normalizer.AddStep(part));
  return normalizer;
}

absl::Status Normalizer::AddStep(const Component& component) {
  const std::string type = component.type();
  Step step{};
  bool known = false;
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({}));
    step.kind = Step::kForm;
    step.form = form;
    known = true;
  }

  if (type == "Prepend") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({"prepend"}));
    SLUICE_ASSIGN_OR_RETURN(step.content, component.String("prepend"));
    step.kind = Step::kPrepend;
  } else if (type == "Replace") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({"pattern", "content"}));
    SLUICE_ASSIGN_OR_RETURN(step.pattern, Pattern::Parse(component));
    SLUICE_ASSIGN_OR_RETURN(step.content, component.String("content"));
    step.kind = Step::kReplace;
  } else if (type == "Strip") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({"strip_left", "strip_right"}));
    SLUICE_ASSIGN_OR_RETURN(step.left, component.Bool("strip_left"));
    SLUICE_ASSIGN_OR_RETURN(step.right, component.Bool("strip_right"));
    step.kind = Step::kStrip;
  } else if (type == "Lowercase") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({}));
    step.kind = Step::kLowercase;
  } else if (!known) {
    return component.Unsupported(absl::StrCat("the normalizer \"", type, "\""));
  }

  if (steps_.size() == kMaxNormalizers)
    return component.Invalid(absl::StrCat("there are more than ", kMaxNormalizers, " normalizers"));
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status Normalizer::Run(AlignedText* text) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::kForm: Normalize(step.form, text); break;
      case Step::kLowercase: Lowercase(text); break;
      case Step::kStrip: text->Keep(StripSpaces(text->text(), step.left, step.right)); break;
      case Step::kPrepend: {
        if (text->text().empty()) break;
        AlignedText::Builder builder(text);
        builder.Insert(step.content, 0);
        builder.Copy({0, text->text().size()});
        builder.Finish();
        break;
      }
      case Step::kReplace: {
        std::vector<Span> matches;
        SLUICE_RETURN_IF_ERROR(step.pattern->Find(text->text(), &matches));
        // Check the size before building the text.
        if (matches.size() > kMaxText / (step.content.size() + 1)) {
          return absl::ResourceExhaustedError(
              absl::StrCat("a Replace would put ", step.content.size(), " bytes into ",
                           matches.size(), " places; the text may grow to ", kMaxText, " bytes"));
        }
        text->Replace(matches, step.content);
        break;
      }
    }
    if (text->text().size() > kMaxText)
      return absl::ResourceExhaustedError(absl::StrCat(
          "the normalized text has ", text->text().size(), " bytes; the limit is ", kMaxText));
  }
  return absl::OkStatus();
}

}  // namespace sluice
