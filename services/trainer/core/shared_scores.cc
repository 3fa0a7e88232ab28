#include "services/trainer/core/shared_scores.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"

namespace sluice::trainer {

std::vector<TrainedTrajectory> FindTrained(std::vector<Group>& groups) {
  std::vector<TrainedTrajectory> found;
  for (uint32_t g = 0; g < groups.size(); ++g) {
    for (Trajectory& trajectory : groups[g].members) {
      const auto& mask = trajectory.mask;
      if (trajectory.tokens.empty() || trajectory.routing.size() % trajectory.tokens.size() != 0 ||
          mask.size() != trajectory.tokens.size() || mask.size() != trajectory.logprobs.size() ||
          mask.size() != trajectory.versions.size() || mask[0] != 0)
        continue;
      if (absl::c_any_of(mask, [](uint8_t m) { return m != 0; })) found.push_back({&trajectory, g});
    }
  }
  return found;
}

absl::StatusOr<std::vector<std::vector<float>>> ScoreShared(
    std::vector<Sequence> sequences, uint32_t micro_batch_tokens, Ranks& ranks,
    const std::function<absl::StatusOr<std::vector<float>>(MicroBatch&)>& score) {
  std::vector<int64_t> loads(static_cast<size_t>(ranks.world()));
  const std::vector<int> rank_of = DealSequences(sequences, ranks.shared_above(), &loads);
  std::vector<size_t> places(sequences.size());  // Of each sequence in its rank's values.
  std::vector<size_t> rows(sequences.size());
  std::vector<size_t> sizes(loads.size());
  std::vector<Sequence> mine;
  std::vector<size_t> mine_places;
  for (size_t i = 0; i < sequences.size(); ++i) {
    rows[i] = sequences[i].rows.size();
    places[i] = sizes[rank_of[i]];
    sizes[rank_of[i]] += rows[i];
    if (rank_of[i] != ranks.rank()) continue;
    mine.push_back(std::move(sequences[i]));
    mine_places.push_back(places[i]);
  }

  std::vector<float> values(sizes[ranks.rank()]);
  for (MicroBatch& batch : MakeMicroBatches(mine, micro_batch_tokens)) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<float> scores, score(batch));
    for (size_t b = 0; b < batch.sequences.size(); ++b) {
      std::copy(scores.begin() + batch.offsets[b], scores.begin() + batch.offsets[b + 1],
                values.begin() + static_cast<int64_t>(mine_places[batch.sequences[b]]));
    }
  }

  SLUICE_ASSIGN_OR_RETURN(const Ranks::Joined<float> all, ranks.Join(std::move(values)));
  std::vector<std::vector<float>> out(rows.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto from = all.values.begin() + static_cast<int64_t>(all.first[rank_of[i]] + places[i]);
    out[i].assign(from, from + static_cast<int64_t>(rows[i]));
  }
  return out;
}

}  // namespace sluice::trainer
