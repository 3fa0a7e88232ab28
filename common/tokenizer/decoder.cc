#include "common/tokenizer/decoder.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/decode_stages.h"
#include "common/tokenizer/metaspace.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {
constexpr int kMaxDecoders = 64, kMaxStrip = 1024;
}  // namespace

absl::StatusOr<Decoder> Decoder::Parse(const Component& component) {
  Decoder decoder;
  decoder.joins_with_spaces_ = false;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Component> parts, component.Flatten("decoders"));
  for (const Component& part : parts) SLUICE_RETURN_IF_ERROR(decoder.AddStep(part));
  while (decoder.prepared_ < decoder.steps_.size() &&
         decoder.steps_[decoder.prepared_].kind == Step::kReplace)
    ++decoder.prepared_;
  return decoder;
}

absl::Status Decoder::AddStep(const Component& component) {
  const std::string type = component.type();
  Step step{};
  if (type == "ByteLevel") {  // Its keys only matter to the pre-tokenizer.
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({"add_prefix_space", "trim_offsets", "use_regex"}));
    step.kind = Step::kByteLevel;
  } else if (type == "ByteFallback" || type == "Fuse") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({}));
    step.kind = type == "Fuse" ? Step::kFuse : Step::kByteFallback;
  } else if (type == "Strip") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({"content", "start", "stop"}));
    SLUICE_ASSIGN_OR_RETURN(step.content, component.Character("content"));
    SLUICE_ASSIGN_OR_RETURN(step.start, component.Int("start", 0, kMaxStrip));
    SLUICE_ASSIGN_OR_RETURN(step.stop, component.Int("stop", 0, kMaxStrip));
    step.kind = Step::kStrip;
  } else if (type == "Replace") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({"pattern", "content"}));
    SLUICE_ASSIGN_OR_RETURN(step.pattern, Pattern::Parse(component));
    SLUICE_ASSIGN_OR_RETURN(step.content, component.String("content"));
    step.kind = Step::kReplace;
  } else if (type == "Metaspace") {
    SLUICE_ASSIGN_OR_RETURN(const Metaspace metaspace, Metaspace::Parse(component));
    step.content = metaspace.replacement;
    step.drops_first = metaspace.prepend != Metaspace::kNever;
    step.kind = Step::kMetaspace;
  } else {
    return component.Unsupported(absl::StrCat("the decoder \"", type, "\""));
  }

  if (steps_.size() == kMaxDecoders)
    return component.Invalid(absl::StrCat("there are more than ", kMaxDecoders, " decoders"));
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Decoder::Prepare(absl::string_view token) const {
  std::string text(token);
  for (size_t i = 0; i < prepared_; ++i) {
    SLUICE_ASSIGN_OR_RETURN(text, steps_[i].pattern->Replace(text, steps_[i].content));
  }
  if (prepared_ < steps_.size() && steps_[prepared_].kind == Step::kByteLevel)
    return ByteLevelAlphabet::Get().Bytes(text);
  return text;
}

std::string Decoder::Bytes(absl::string_view prepared) const {
  std::string bytes = absl::StrCat(joins_with_spaces_ ? " " : "", prepared);
  bool fused = false;  // From here on all tokens are one, which does not end here.
  for (size_t i = prepared_; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (step.kind == Step::kByteLevel) {
      if (i > prepared_) bytes = ByteLevelAlphabet::Get().Bytes(bytes);
      fused = true;
    } else if (step.kind == Step::kReplace) {
      if (auto replaced = step.pattern->Replace(bytes, step.content); replaced.ok())
        bytes = *std::move(replaced);
    } else if (step.kind == Step::kByteFallback) {
      if (const int byte = FallbackByte(bytes); byte >= 0)
        return std::string(1, static_cast<char>(byte));
    } else if (step.kind == Step::kFuse) {
      fused = true;
    } else if (step.kind == Step::kMetaspace) {
      bytes = absl::StrReplaceAll(bytes, {{step.content, " "}});
    } else if (step.kind == Step::kStrip && !fused) {
      for (int n = 0; n < step.start && absl::StartsWith(bytes, step.content); ++n)
        bytes.erase(0, step.content.size());
      for (int n = 0; n < step.stop && absl::EndsWith(bytes, step.content); ++n)
        bytes.resize(bytes.size() - step.content.size());
    }
  }
  return bytes;
}

std::unique_ptr<DecodeStage> Decoder::MakeStage(const Step& step, bool prepared) {
  switch (step.kind) {
    case Step::kByteLevel: return std::make_unique<ByteLevelStage>(/*spelled=*/!prepared);
    case Step::kReplace: return std::make_unique<ReplaceStage>(step.pattern.get(), step.content);
    case Step::kByteFallback: return std::make_unique<ByteFallbackStage>();
    case Step::kFuse: return std::make_unique<FuseStage>();
    case Step::kStrip: return std::make_unique<StripStage>(step.content, step.start, step.stop);
    case Step::kMetaspace: return std::make_unique<MetaspaceStage>(step.content, step.drops_first);
  }
  return nullptr;
}

Decoder::Stream::Stream(const Decoder* decoder, std::string* out) {
  if (decoder->joins_with_spaces_) stages_.push_back(std::make_unique<JoinStage>());
  for (size_t i = decoder->prepared_; i < decoder->steps_.size(); ++i)
    stages_.push_back(MakeStage(decoder->steps_[i], i == decoder->prepared_));
  stages_.push_back(std::make_unique<OutStage>(out));
  for (size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->next = stages_[i + 1].get();
  first_ = stages_.front().get();
}

}  // namespace sluice
