#include "services/trainer/core/held_out.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/trainer/core/pairs.h"
#include "services/trainer/core/ranks.h"
#include "services/trainer/core/scorer.h"
#include "services/trainer/core/sequences.h"
#include "services/trainer/core/shared_scores.h"

namespace sluice::trainer {
namespace {

// Sums over each sequence, in fp64 and in the order of the tokens.
std::vector<double> SumEach(const std::vector<std::vector<float>>& logprobs) {
  std::vector<double> sums;
  for (const std::vector<float>& of_answer : logprobs)
    sums.push_back(std::accumulate(of_answer.begin(), of_answer.end(), 0.0));
  return sums;
}

absl::Status CheckRow(const Group& group, size_t answers) {
  const bool whole = absl::c_all_of(group.members, [](const Trajectory& answer) {
    return answer.mask.size() == answer.tokens.size() &&
           (answer.mask.empty() || answer.mask.front() == 0);
  });
  if (whole && group.members.size() == answers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the row ", group.id.hex(), " has ", group.members.size(), " answers of ",
                   answers, ", columns of different lengths, or no token before those to score"));
}

bool IsScored(const Group& group) {
  return absl::c_all_of(group.members, [](const Trajectory& answer) {
    return absl::c_any_of(answer.mask, [](uint8_t m) { return m != 0; });
  });
}

}  // namespace

void HeldOutSums::Merge(const HeldOutSums& other) {
  rows += other.rows;
  left_out += other.left_out;
  tokens += other.tokens;
  loss += other.loss;
  pairs.Merge(other.pairs);
}

double HeldOutSums::MeanLoss() const {
  const int64_t count = pairs.pairs > 0 ? pairs.pairs : tokens;
  return count == 0 ? 0 : loss / static_cast<double>(count);
}

absl::StatusOr<HeldOutSums> ScoreHeldOut(const Settings& settings, absl::Span<const Group> groups,
                                         Ranks& ranks, Scorer* scorer) {
  const bool pairs = settings.kind == Settings::Kind::kDpo;
  HeldOutSums sums;
  std::vector<Sequence> sequences;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!IsScored(groups[g])) {
      ++sums.left_out;
      continue;
    }
    SLUICE_RETURN_IF_ERROR(CheckRow(groups[g], pairs ? 2 : 1));
    ++sums.rows;
    for (const Trajectory& answer : groups[g].members) {
      sequences.push_back(MakeSequence(answer, static_cast<uint32_t>(g), 0));
      sums.tokens += static_cast<int64_t>(sequences.back().targets.size());
    }
  }

  const auto score = [&](const std::vector<Sequence>& of, auto&& pass) {
    return ScoreShared(of, settings.micro_batch_tokens, ranks, pass);
  };
  SLUICE_ASSIGN_OR_RETURN(
      const std::vector<std::vector<float>> logprobs,
      score(sequences, [&](MicroBatch& batch) { return scorer->Logprobs(batch); }));
  const std::vector<double> policy = SumEach(logprobs);
  if (!pairs) {
    for (const double sum : policy) sums.loss -= sum;
    return sums;
  }

  SLUICE_ASSIGN_OR_RETURN(
      const std::vector<std::vector<float>> of_reference,
      score(sequences, [&](MicroBatch& batch) -> absl::StatusOr<std::vector<float>> {
        SLUICE_RETURN_IF_ERROR(scorer->SetReference(batch));
        return std::move(batch.ref);
      }));
  const std::vector<double> reference = SumEach(of_reference);
  for (size_t s = 0; s < policy.size(); s += 2) {
    sums.loss += ComparePair({policy[s], policy[s + 1]}, {reference[s], reference[s + 1]},
                             settings.dpo.beta, settings.dpo.label_smoothing, &sums.pairs)
                     .loss;
  }
  return sums;
}

}  // namespace sluice::trainer
