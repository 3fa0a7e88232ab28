#include "services/rollout/core/trajectory/trajectory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/models/moe.h"

namespace sluice {
namespace {

template <typename T>
absl::string_view Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

Trajectory::Trajectory(uint32_t prompt, std::vector<int32_t> prefix_tokens,
                       std::vector<float> prefix_logprobs,
                       std::vector<PolicyVersion> prefix_versions)
    : prompt_(prompt),
      prefix_(prefix_tokens.size()),
      tokens_(std::move(prefix_tokens)),
      logprobs_(std::move(prefix_logprobs)),
      versions_(std::move(prefix_versions)),
      sent_(tokens_.size()),
      acked_(tokens_.size()) {
  SLUICE_CHECK(tokens_.size() == logprobs_.size() && tokens_.size() == versions_.size());
}

void Trajectory::RecordRouting(uint32_t experts) {
  SLUICE_CHECK(tokens_.size() == prefix_);
  experts_ = experts;
  routing_.assign(tokens_.size() * experts, kAnyExpert);
}

void Trajectory::Append(const TokenEvent& event) {
  SLUICE_CHECK_MSG(event.position == position(),
                   absl::StrCat("token at ", event.position, ", expected ", position()));
  tokens_.push_back(event.token);
  logprobs_.push_back(event.logprob);
  versions_.push_back(event.version);

  if (experts_ == 0) return;
  SLUICE_CHECK(event.details != nullptr && event.details->routing.size() == experts_);
  routing_.insert(routing_.end(), event.details->routing.begin(), event.details->routing.end());
}

Trajectory::Piece Trajectory::TakePiece(size_t limit) {
  const size_t count = std::min(limit, unsent());
  Piece piece{.at = prompt_ + sent_,
              .tokens = absl::MakeConstSpan(tokens_).subspan(sent_, count),
              .logprobs = absl::MakeConstSpan(logprobs_).subspan(sent_, count),
              .routing = absl::MakeConstSpan(routing_).subspan(sent_ * experts_, count * experts_)};

  // Tokens of one version in a row make one run.
  for (size_t i = sent_; i < sent_ + count; ++i) {
    const PolicyVersion version = versions_[i];
    if (piece.runs.empty() || piece.runs.back().version != version)
      piece.runs.push_back({.version = version});
    ++piece.runs.back().count;
  }

  sent_ += count;
  return piece;
}

// An acknowledgement that is lower than an earlier one changes nothing.
void Trajectory::Acknowledge(uint64_t position) {
  if (position > prompt_) acked_ = std::clamp<size_t>(position - prompt_, acked_, tokens_.size());
}

void Trajectory::Rewind(uint64_t position) {
  const size_t held = position > prompt_ ? position - prompt_ : 0;
  sent_ = std::min(sent_, held);
  acked_ = std::min(acked_, held);
}

void Trajectory::Truncate(uint64_t position) {
  const size_t count =
      std::clamp<size_t>(position > prompt_ ? position - prompt_ : 0, prefix_, tokens_.size());
  tokens_.resize(count);
  logprobs_.resize(count);
  versions_.resize(count);
  routing_.resize(count * experts_);
  sent_ = std::min(sent_, count);
  acked_ = std::min(acked_, count);
  finish_ = FinishReason::kLength;
}

uint32_t Trajectory::Crc32c() const {
  return sluice::Crc32c(Bytes(logprobs_), sluice::Crc32c(Bytes(tokens_)));
}

}  // namespace sluice
