#include "common/tokenizer/splitter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr std::pair<const char*, Splitter::Behavior> kBehaviors[] = {
    {"Isolated", Splitter::kIsolated},
    {"Removed", Splitter::kRemoved},
    {"MergedWithPrevious", Splitter::kMergedWithPrevious},
    {"MergedWithNext", Splitter::kMergedWithNext},
    {"Contiguous", Splitter::kContiguous}};

struct Piece {
  Span span;
  bool match;
};

// Returns the matches and the text between them, in order.
std::vector<Piece> Cover(const std::vector<Span>& matches, size_t size, bool invert) {
  std::vector<Piece> pieces;
  size_t done = 0;
  for (const Span& match : matches) {
    if (match.begin > done) pieces.push_back({{done, match.begin}, invert});
    pieces.push_back({match, !invert});
    done = match.end;
  }
  if (done < size) pieces.push_back({{done, size}, invert});
  return pieces;
}

// Whether a piece joins the piece before it, in the order in which MergePieces() visits them.
// `match` and `previous_match` say whether the two are matches.
bool JoinsPrevious(Splitter::Behavior behavior, bool match, bool previous_match) {
  if (behavior == Splitter::kContiguous) return match == previous_match;
  return match && !previous_match;  // MergedWithPrevious, and MergedWithNext from the end.
}

std::vector<Span> MergePieces(Splitter::Behavior behavior, std::vector<Piece> pieces) {
  const bool backwards = behavior == Splitter::kMergedWithNext;
  if (backwards) std::reverse(pieces.begin(), pieces.end());
  std::vector<Span> merged;
  bool previous_match = false;
  for (const Piece& piece : pieces) {
    if (!merged.empty() && JoinsPrevious(behavior, piece.match, previous_match)) {
      merged.back() = {std::min(merged.back().begin, piece.span.begin),
                       std::max(merged.back().end, piece.span.end)};
    } else {
      merged.push_back(piece.span);
    }
    previous_match = piece.match;
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  return merged;
}

}  // namespace

absl::StatusOr<Splitter> Splitter::Parse(const Component& split) {
  SLUICE_RETURN_IF_ERROR(split.CheckKeys({"pattern", "behavior", "invert"}));
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const Pattern> pattern, Pattern::Parse(split));
  SLUICE_ASSIGN_OR_RETURN(const std::string name, split.String("behavior"));
  SLUICE_ASSIGN_OR_RETURN(const bool invert, split.Bool("invert", false));
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) return Splitter(std::move(pattern), behavior, invert);
  }
  return split.Unsupported(absl::StrCat("the behavior \"", name, "\""));
}

Splitter::Splitter(std::shared_ptr<const Pattern> pattern, Behavior behavior, bool invert)
    : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {
  // The scanner gives the pieces directly if all pieces are kept, or if only the text between the
  // matches is removed and there is none.
  if (behavior == kIsolated || (behavior == kRemoved && invert && pattern_->matches_everywhere()))
    scanner_ = pattern_->scanner();
}

absl::Status Splitter::Split(absl::string_view text, Span part, std::vector<Span>* pieces) const {
  const absl::string_view view = text.substr(part.begin, part.size());
  if (scanner_ != nullptr) {
    for (size_t at = 0; at < view.size();) {
      const size_t end = scanner_(view, at).end;
      pieces->push_back({part.begin + at, part.begin + end});
      at = end;
    }
    return absl::OkStatus();
  }

  std::vector<Span> found;
  SLUICE_RETURN_IF_ERROR(pattern_->Find(view, &found));
  const std::vector<Piece> cover = Cover(found, view.size(), invert_);
  std::vector<Span> kept;
  if (behavior_ == kIsolated || behavior_ == kRemoved) {
    for (const Piece& piece : cover) {
      if (behavior_ == kIsolated || !piece.match) kept.push_back(piece.span);
    }
  } else {
    kept = MergePieces(behavior_, cover);
  }

  for (const Span& span : kept) {
    if (span.size() > 0) pieces->push_back({part.begin + span.begin, part.begin + span.end});
  }
  return absl::OkStatus();
}

}  // namespace sluice
