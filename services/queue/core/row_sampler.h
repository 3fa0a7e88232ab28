#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/queue/core/types.h"

namespace sluice::queue {

class RowSource;

// The rewards that the answers of one group got.
struct GroupResult {
  int64_t step = 0;  // The step that the group was for.
  RowRef row;
  double sum = 0;        // Of the rewards.
  uint32_t answers = 0;  // Above 0.
  bool perfect = false;  // Each reward is at least 1.
};

// How often a row was answered perfectly of late, and whether it rests.
struct RowRest {
  uint32_t perfect = 0;  // Visits in a row.
  int64_t until = 0;     // It is not drawn for steps below this one.

  bool operator==(const RowRest&) const = default;
};

// What a sampler remembers of one source. With the job's seed it determines all later draws.
struct SamplerSource {
  // Of the sampler levels.
  uint32_t level = 0;      // Index of the present level among those of the source.
  uint64_t drawn = 0;      // Draws at this level.
  int64_t since_step = 0;  // The first step with results that count for this level.
  // Results of the present level, oldest first: sum and number of the rewards of each group.
  std::vector<std::pair<double, uint32_t>> window;

  // Of the sampler adaptive.
  uint64_t weighted = 0, uniform = 0;  // Draws of each sort.
  // By row: rewards that were earned and missed. Later visits count more.
  std::map<uint64_t, std::pair<double, double>> visited;

  // With Spec::rest_after, by row. A row whose last visit was not perfect is left out.
  std::map<uint64_t, RowRest> rests;

  bool operator==(const SamplerSource&) const = default;
};

struct SamplerState {
  std::vector<SamplerSource> sources;  // Empty with the sampler uniform.
  // Results that no draw may use yet, by ascending step.
  std::vector<GroupResult> pending;
  // Results of trained groups of steps below this one have been noted. A step that is trained again
  // as it was, after a restart, adds nothing.
  int64_t noted = 0;
};

// Chooses rows by what their answers have earned. A draw depends only on the seed, on the state and
// on the rows, so that a job that goes on from a state draws the same rows.
class RowSampler {
 public:
  using IsExcluded = std::function<bool(uint64_t row)>;

  virtual ~RowSampler() = default;
  // The source's next row, and its epoch. At least one of its rows is not excluded.
  virtual RowRef Draw(uint32_t source, SamplerSource* state, const IsExcluded& is_excluded) = 0;
  // Takes in a result. Returns what there is to tell about it, mostly nothing.
  virtual std::string Learn(const GroupResult& result, SamplerSource* state) = 0;
  // What the state of a source says, as a sentence.
  virtual std::string Describe(uint32_t source, const SamplerSource& state) const = 0;
  // The state was replaced: what is computed from it is computed anew.
  virtual void Rebuild(const std::vector<SamplerSource>& states) = 0;
  // Whether a state can be one of this source: it may come from a damaged file.
  virtual bool IsValid(uint32_t source, const SamplerSource& state) const = 0;
};

// `levels`: the rows of the present level, in an order that is shuffled anew for each pass over
// them. The next level begins once the mean of the last Spec::level_window rewards of this level is
// Spec::level_up. `rows` outlives the sampler, as it does below.
std::unique_ptr<RowSampler> MakeLevelSampler(const Spec& spec, const RowSource* rows);

// `adaptive`: every tenth draw is the next row of a shuffle. The others draw row i with the weight
// p(1-p), where p = (1 + earned) / (2 + earned + missed) is the mean of a Beta distribution with
// the prior Beta(1, 1). With each visit of a row, what its earlier visits have earned and missed
// counts half, because the policy has changed.
std::unique_ptr<RowSampler> MakeAdaptiveSampler(const Spec& spec, const RowSource* rows);
// Its state is a part of each checkpoint, so the number of rows is limited.
inline constexpr uint64_t kMostAdaptiveRows = 100'000;

}  // namespace sluice::queue
