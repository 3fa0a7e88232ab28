#include "common/tokenizer/pre_tokenizer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {
constexpr size_t kMaxPreTokenizers = 64;
}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Parse(const Component& component) {
  PreTokenizer pre;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Component> parts, component.Flatten("pretokenizers"));
  for (const Component& part : parts) SLUICE_RETURN_IF_ERROR(pre.AddStep(part));
  return pre;
}

absl::Status PreTokenizer::AddStep(const Component& component) {
  const std::string type = component.type();
  if (byte_level_) return component.Unsupported("a pre-tokenizer behind ByteLevel");
  if (steps_.size() >= kMaxPreTokenizers)
    return component.Invalid(
        absl::StrCat("there are more than ", kMaxPreTokenizers, " pre-tokenizers"));
  if (type == "ByteLevel") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({"add_prefix_space", "trim_offsets", "use_regex"}));
    SLUICE_ASSIGN_OR_RETURN(const bool prefix_space, component.Bool("add_prefix_space"));
    SLUICE_ASSIGN_OR_RETURN(const bool use_regex, component.Bool("use_regex", true));
    if (prefix_space) steps_.push_back({.prefix_space = true});
    if (use_regex) {
      SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const Pattern> words, Pattern::Regex(kGpt2Pattern));
      steps_.push_back({.splitter = Splitter(std::move(words), Splitter::kIsolated, false)});
    }
    byte_level_ = true;
  } else if (type == "Split") {
    SLUICE_ASSIGN_OR_RETURN(Splitter splitter, Splitter::Parse(component));
    steps_.push_back({.splitter = std::move(splitter)});
  } else if (type == "Digits") {
    SLUICE_RETURN_IF_ERROR(component.CheckKeys({"individual_digits"}));
    SLUICE_ASSIGN_OR_RETURN(const bool individual, component.Bool("individual_digits"));
    steps_.push_back(
        {.splitter = Splitter(Pattern::Digit(),
                              individual ? Splitter::kIsolated : Splitter::kContiguous, false)});
  } else if (type == "Metaspace") {
    SLUICE_ASSIGN_OR_RETURN(Metaspace metaspace, Metaspace::Parse(component));
    // `first` needs to know whether a piece is at the start of the original text.
    if (metaspace.prepend == Metaspace::kFirst) {
      looks_at_origin_ = true;
      for (const Step& step : steps_)
        rewrites_before_looking_ = rewrites_before_looking_ || !step.splitter;
    }
    steps_.push_back({.metaspace = std::move(metaspace)});
  } else {
    return component.Unsupported(absl::StrCat("the pre-tokenizer \"", type, "\""));
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::Run(AlignedText* text, Span part, std::vector<Span>* words) const {
  std::vector<Span> pieces;
  if (part.size() > 0) pieces.push_back(part);
  for (const Step& step : steps_) {
    if (step.prefix_space) {
      AddPrefixSpaces(text, &pieces);
    } else if (step.metaspace) {
      RunMetaspace(*step.metaspace, text, &pieces);
    } else {
      std::vector<Span> finer;
      finer.reserve(pieces.size() + text->text().size() / 4);
      for (const Span& piece : pieces)
        SLUICE_RETURN_IF_ERROR(step.splitter->Split(text->text(), piece, &finer));
      pieces = std::move(finer);
    }
  }
  words->insert(words->end(), pieces.begin(), pieces.end());
  return absl::OkStatus();
}

void PreTokenizer::AddPrefixSpaces(AlignedText* text, std::vector<Span>* pieces) {
  AlignedText::Builder builder(text);
  for (Span& piece : *pieces) {
    const size_t begin = builder.size();
    if (text->text()[piece.begin] != ' ') builder.Insert(" ", piece.begin);
    builder.Copy(piece);
    piece = {begin, builder.size()};
  }
  builder.Finish();
}

void PreTokenizer::RunMetaspace(const Metaspace& metaspace, AlignedText* text,
                                std::vector<Span>* pieces) {
  const std::string& mark = metaspace.replacement;
  AlignedText::Builder builder(text);
  std::vector<Span> out;
  for (const Span& piece : *pieces) {
    const absl::string_view view = text->text().substr(piece.begin, piece.size());
    // Whether a mark goes in front of the piece.
    const bool prepends =
        metaspace.prepend == Metaspace::kAlways ||
        (metaspace.prepend == Metaspace::kFirst && text->Origin(piece).begin == 0);
    size_t begin = builder.size();  // Begin of the word that is being built.
    if (prepends && view[0] != ' ' && !absl::StartsWith(view, mark))
      builder.Insert(mark, piece.begin);

    for (size_t at = 0; at < view.size();) {
      const bool space = view[at] == ' ';
      const bool is_mark = space || absl::StartsWith(view.substr(at), mark);
      if (metaspace.split && is_mark && builder.size() > begin) {
        out.push_back({begin, builder.size()});
        begin = builder.size();
      }

      size_t end = at + (is_mark && !space ? mark.size() : 1);
      if (space) {
        builder.Insert(mark, piece.begin + at);
      } else {
        // Copy up to what may be a mark: its first byte is enough to look again.
        while (end < view.size() && view[end] != ' ' && (!metaspace.split || view[end] != mark[0]))
          ++end;
        builder.Copy({piece.begin + at, piece.begin + end});
      }
      at = end;
    }
    out.push_back({begin, builder.size()});
  }
  builder.Finish();
  *pieces = std::move(out);
}

}  // namespace sluice
