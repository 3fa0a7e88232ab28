#include "common/tokenizer/post_processor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/tokenizer/tokenizer_file.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {
constexpr size_t kMaxPostProcessors = 64, kMaxAdded = 1024;

// Returns the range without the spaces at the token's ends. A single leading space is not counted
// if the pre-tokenizer may have added it, because then it is not in the text.
Span Trim(absl::string_view text, Span range, TokenSpans::Spaces spaces, bool first,
          bool prefix_space) {
  if (spaces.leading == 1 && prefix_space && (first || range.begin == 0)) spaces.leading = 0;
  for (; spaces.leading > 0 && range.begin < range.end; --spaces.leading)
    range.begin += Utf8SequenceLength(text[range.begin]);
  range.begin = std::min(range.begin, range.end);
  size_t end = range.end;
  for (; spaces.trailing > 0; --spaces.trailing) {
    if (end == 0) return range;  // There are more spaces than text before the end.
    do --end;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  }
  range.end = std::max(end, range.begin);
  return range;
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::Parse(const Component& component) {
  PostProcessor processor;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Component> parts, component.Flatten("processors"));
  for (const Component& part : parts) SLUICE_RETURN_IF_ERROR(processor.AddStep(part));
  for (const Step& step : processor.steps_) {
    processor.before_.insert(processor.before_.begin(), step.before.begin(), step.before.end());
    processor.after_.insert(processor.after_.end(), step.after.begin(), step.after.end());
  }
  return processor;
}

absl::Status PostProcessor::AddStep(const Component& component) {
  const std::string type = component.type();
  if (steps_.size() == kMaxPostProcessors)
    return component.Invalid(
        absl::StrCat("there are more than ", kMaxPostProcessors, " post-processors"));
  if (type == "TemplateProcessing") return AddTemplate(component);
  if (type != "ByteLevel")
    return component.Unsupported(absl::StrCat("the post-processor \"", type, "\""));
  SLUICE_RETURN_IF_ERROR(component.CheckKeys({"add_prefix_space", "trim_offsets", "use_regex"}));
  Step step;
  SLUICE_ASSIGN_OR_RETURN(step.prefix_space, component.Bool("add_prefix_space"));
  SLUICE_ASSIGN_OR_RETURN(step.trims, component.Bool("trim_offsets"));
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PostProcessor::AddTemplate(const Component& component) {
  // `pair` is for two texts and is not used.
  SLUICE_RETURN_IF_ERROR(component.CheckKeys({"single", "pair", "special_tokens"}));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Component> items, component.Objects("single"));
  Step step;
  bool seen = false;
  for (const Component& item : items) {
    SLUICE_RETURN_IF_ERROR(item.CheckKeys({"Sequence", "SpecialToken"}));
    if (item.Has("Sequence")) {
      SLUICE_ASSIGN_OR_RETURN(const Component sequence, item.Object("Sequence"));
      SLUICE_ASSIGN_OR_RETURN(const std::string name, sequence.String("id"));
      if (name != "A" || seen) return item.Unsupported("a text other than A, or A twice,");
      seen = true;
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const Component special, item.Object("SpecialToken"));
    SLUICE_ASSIGN_OR_RETURN(const std::string name, special.String("id"));
    SLUICE_ASSIGN_OR_RETURN(const Component tokens, component.Object("special_tokens"));
    SLUICE_ASSIGN_OR_RETURN(const Component token, tokens.Object(name.c_str()));
    if (!token.Has("ids") || !token.json()["ids"].is_array())
      return token.Invalid("ids is missing or not a list");
    for (const nlohmann::json& id : token.json()["ids"]) {
      if (!id.is_number_unsigned() || id > TokenizerFile::kMaxId)
        return token.Invalid(
            absl::StrCat("ids has an entry that is not in [0, ", TokenizerFile::kMaxId, "]"));
      (seen ? step.after : step.before).push_back(id.get<int32_t>());
    }

    if (step.before.size() + step.after.size() > kMaxAdded)
      return component.Invalid(absl::StrCat("it adds more than ", kMaxAdded, " special tokens"));
  }
  if (!seen) return component.Invalid("single lacks the text A");
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void PostProcessor::Run(absl::string_view text, bool add_special, TokenSpans* tokens) const {
  SLUICE_CHECK(tokens->offsets.size() == tokens->ids.size() &&
               tokens->spaces.size() == tokens->ids.size());
  for (const Step& step : steps_) {
    for (size_t i = 0; step.trims && i < tokens->ids.size(); ++i)
      tokens->offsets[i] =
          Trim(text, tokens->offsets[i], tokens->spaces[i], i == 0, step.prefix_space);
    if (!add_special) continue;
    const size_t n = tokens->ids.size() + step.before.size() + step.after.size();
    tokens->ids.insert(tokens->ids.begin(), step.before.begin(), step.before.end());
    tokens->ids.insert(tokens->ids.end(), step.after.begin(), step.after.end());
    tokens->offsets.insert(tokens->offsets.begin(), step.before.size(), Span{});
    tokens->offsets.resize(n);
    tokens->spaces.insert(tokens->spaces.begin(), step.before.size(), {});
    tokens->spaces.resize(n);
  }
}

}  // namespace sluice
