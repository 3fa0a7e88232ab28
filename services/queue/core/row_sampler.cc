#include "services/queue/core/row_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "services/queue/core/prompts.h"

namespace sluice::queue {
namespace {

// A shuffle of 0 .. count - 1 that a seed determines. It is kept, as places are asked for in order.
class SeededShuffle {
 public:
  uint64_t At(uint64_t seed, uint64_t count, uint64_t place) {
    if (seed != seed_ || order_.size() != count) {
      seed_ = seed;
      order_.resize(count);
      std::iota(order_.begin(), order_.end(), 0);
      SplitMix64 random(seed);
      for (uint64_t i = count; i > 1; --i) std::swap(order_[i - 1], order_[random.Below(i)]);
    }
    return order_[place];
  }

 private:
  uint64_t seed_ = 0;
  std::vector<uint32_t> order_;
};

uint64_t MixOf(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  return Mix64(Mix64(Mix64(seed + kGolden * (a + 1)) + kGolden * (b + 1)) + kGolden * (c + 1));
}

class LevelSampler : public RowSampler {
 public:
  LevelSampler(const Spec& spec, const RowSource* rows)
      : spec_(spec), rows_(rows), shuffles_(spec.sources.size()) {
    for (uint32_t s = 0; s < spec.sources.size(); ++s) {
      std::map<int64_t, std::vector<uint32_t>> by_level;
      for (uint64_t i = 0; i < rows->rows(s); ++i)
        by_level[rows->level(s, i)].push_back(static_cast<uint32_t>(i));
      levels_.emplace_back(by_level.begin(), by_level.end());
    }
  }

  RowRef Draw(uint32_t source, SamplerSource* state, const IsExcluded& is_excluded) override {
    const size_t level = LevelToDraw(source, *state, is_excluded);
    // Nothing more can be earned at a level that has no rows left.
    if (level > state->level) {
      *state = {.level = static_cast<uint32_t>(level),
                .since_step = state->since_step,
                .rests = std::move(state->rests)};
    }
    const std::vector<uint32_t>& rows = levels_[source][level].second;
    while (true) {
      const uint64_t draw = state->drawn++, epoch = draw / rows.size();
      const uint64_t seed = MixOf(spec_.seed, source, state->level, epoch);
      const uint64_t row = rows[shuffles_[source].At(seed, rows.size(), draw % rows.size())];
      if (is_excluded(row)) continue;
      return {.source = source, .epoch = static_cast<uint32_t>(epoch), .index = row};
    }
  }

  std::string Learn(const GroupResult& result, SamplerSource* state) override {
    const Levels& levels = levels_[result.row.source];
    if (rows_->level(result.row.source, result.row.index) != levels[state->level].first) return "";

    state->window.emplace_back(result.sum, result.answers);
    uint64_t answers = AnswersIn(*state);
    while (answers - state->window.front().second >= spec_.level_window) {
      answers -= state->window.front().second;
      state->window.erase(state->window.begin());
    }
    const double mean = MeanOf(*state);
    if (answers < spec_.level_window || mean < spec_.level_up) return "";
    if (state->level + 1 == levels.size()) return "";

    const int64_t before = levels[state->level].first;
    *state = {
        .level = state->level + 1, .since_step = result.step + 1, .rests = std::move(state->rests)};
    return absl::StrFormat(
        "source %s draws level %d now: the mean reward of the last %d answers of level %d was "
        "%.3f, up to step %d",
        spec_.sources[result.row.source].name, levels[state->level].first, answers, before, mean,
        result.step);
  }

  std::string Describe(uint32_t source, const SamplerSource& state) const override {
    const Levels& levels = levels_[source];
    std::string text = absl::StrFormat("%s: level %d, from step %d on", spec_.sources[source].name,
                                       levels[state.level].first, state.since_step);
    const uint64_t answers = AnswersIn(state);
    if (answers > 0)
      absl::StrAppendFormat(&text, "; mean reward %.3f of its last %d answers", MeanOf(state),
                            answers);
    if (state.level + 1 == levels.size()) return text + "; it is the last level";
    absl::StrAppendFormat(&text, "; level %d begins at %g of %d", levels[state.level + 1].first,
                          spec_.level_up, spec_.level_window);
    return text;
  }

  void Rebuild(const std::vector<SamplerSource>&) override {}
  bool IsValid(uint32_t source, const SamplerSource& state) const override {
    return state.level < std::max<size_t>(1, levels_[source].size());
  }

 private:
  // The levels of a source, ascending, and their rows.
  using Levels = std::vector<std::pair<int64_t, std::vector<uint32_t>>>;

  // The present level; if all its rows are excluded, the next one that has rows, or the last one.
  size_t LevelToDraw(uint32_t source, const SamplerSource& state,
                     const IsExcluded& is_excluded) const {
    const Levels& levels = levels_[source];
    const auto has_rows = [&](size_t level) {
      const std::vector<uint32_t>& rows = levels[level].second;
      return !std::all_of(rows.begin(), rows.end(), is_excluded);
    };
    for (size_t level = state.level; level < levels.size(); ++level) {
      if (has_rows(level)) return level;
    }
    for (size_t level = state.level; level-- > 0;) {
      if (has_rows(level)) return level;
    }
    SLUICE_CHECK(false);
    return 0;
  }

  static uint64_t AnswersIn(const SamplerSource& state) {
    uint64_t answers = 0;
    for (const auto& [sum, count] : state.window) answers += count;
    return answers;
  }
  static double MeanOf(const SamplerSource& state) {
    double all = 0;
    for (const auto& [sum, count] : state.window) all += sum;
    return all / static_cast<double>(AnswersIn(state));
  }

  const Spec spec_;
  const RowSource* const rows_;
  std::vector<Levels> levels_;  // By source.
  std::vector<SeededShuffle> shuffles_;
};

// Sums of weights, to draw by them: a Fenwick tree. Weights are integers, so a tree that was
// changed step by step equals one that is built anew.
class WeightTree {
 public:
  void Assign(uint64_t count, uint64_t weight) {
    tree_.assign(count + 1, 0);
    weights_.assign(count, 0);
    total_ = 0;
    for (uint64_t i = 0; i < count; ++i) Set(i, weight);
  }
  void Set(uint64_t i, uint64_t weight) {
    const uint64_t change = weight - weights_[i];  // May wrap, as the sums then do.
    weights_[i] = weight;
    total_ += change;
    for (uint64_t at = i + 1; at < tree_.size(); at += at & -at) tree_[at] += change;
  }
  uint64_t total() const { return total_; }
  // The first index whose weights up to it, itself included, add up to more than `sum`.
  uint64_t Find(uint64_t sum) const {
    uint64_t at = 0;
    for (uint64_t step = std::bit_floor(tree_.size() - 1); step > 0; step /= 2) {
      if (at + step >= tree_.size() || tree_[at + step] > sum) continue;
      at += step;
      sum -= tree_[at];
    }
    return at;
  }

 private:
  std::vector<uint64_t> tree_, weights_;
  uint64_t total_ = 0;
};

class AdaptiveSampler : public RowSampler {
 public:
  AdaptiveSampler(const Spec& spec, const RowSource* rows)
      : spec_(spec), rows_(rows), weights_(spec.sources.size()), shuffles_(spec.sources.size()) {
    for (uint32_t s = 0; s < spec.sources.size(); ++s)
      weights_[s].Assign(rows->rows(s), WeightOf({0, 0}));
  }

  RowRef Draw(uint32_t source, SamplerSource* state, const IsExcluded& is_excluded) override {
    const uint64_t rows = rows_->rows(source);
    const uint64_t draw = state->weighted + state->uniform;
    if (draw % kUniformEvery == kUniformEvery - 1) return DrawUniform(source, state, is_excluded);

    SplitMix64 random(MixOf(spec_.seed, source, draw, kWeightedDraws));
    ++state->weighted;
    for (int i = 0; i < kTries; ++i) {
      const uint64_t row = weights_[source].Find(random.Below(weights_[source].total()));
      if (!is_excluded(row))
        return {.source = source, .epoch = static_cast<uint32_t>(draw / rows), .index = row};
    }
    // Nearly all rows are excluded, so that chance finds none of the others.
    return DrawUniform(source, state, is_excluded);
  }

  std::string Learn(const GroupResult& result, SamplerSource* state) override {
    auto& [earned, missed] = state->visited[result.row.index];
    const double mean = std::clamp(result.sum / result.answers, 0.0, 1.0);
    earned = earned / 2 + mean * result.answers;
    missed = missed / 2 + (1 - mean) * result.answers;
    weights_[result.row.source].Set(result.row.index, WeightOf({earned, missed}));
    return "";
  }

  std::string Describe(uint32_t source, const SamplerSource& state) const override {
    uint64_t solved = 0, hopeless = 0;
    for (const auto& [row, counts] : state.visited) {
      const double p = ShareEarned(counts);
      solved += p >= 0.8;
      hopeless += p <= 0.2;
    }
    return absl::StrFormat(
        "%s: %d of %d rows were answered, of which %d earn at least 0.8 now, %d at most 0.2, and "
        "%d lie between, which come most often",
        spec_.sources[source].name, state.visited.size(), rows_->rows(source), solved, hopeless,
        state.visited.size() - solved - hopeless);
  }

  void Rebuild(const std::vector<SamplerSource>& states) override {
    for (uint32_t s = 0; s < states.size(); ++s) {
      weights_[s].Assign(rows_->rows(s), WeightOf({0, 0}));
      for (const auto& [row, counts] : states[s].visited) weights_[s].Set(row, WeightOf(counts));
    }
  }

  bool IsValid(uint32_t source, const SamplerSource& state) const override {
    return std::all_of(state.visited.begin(), state.visited.end(), [&](const auto& visit) {
      const auto& [earned, missed] = visit.second;
      return visit.first < rows_->rows(source) && earned >= 0 && missed >= 0 &&
             std::isfinite(earned) && std::isfinite(missed);
    });
  }

 private:
  static constexpr uint64_t kUniformEvery = 10;
  static constexpr uint64_t kWeightedDraws = 1, kUniformDraws = 2;  // Streams of random numbers.
  static constexpr int kTries = 64;

  static double ShareEarned(const std::pair<double, double>& counts) {
    return (1 + counts.first) / (2 + counts.first + counts.second);
  }
  // At least 1, so that no row is excluded.
  static uint64_t WeightOf(const std::pair<double, double>& counts) {
    const double p = ShareEarned(counts);
    return 1 + static_cast<uint64_t>(std::llround(p * (1 - p) * 0x1p24));
  }

  RowRef DrawUniform(uint32_t source, SamplerSource* state, const IsExcluded& is_excluded) {
    const uint64_t rows = rows_->rows(source);
    while (true) {
      const uint64_t draw = state->uniform++, epoch = draw / rows;
      const uint64_t seed = MixOf(spec_.seed, source, epoch, kUniformDraws);
      const uint64_t row = shuffles_[source].At(seed, rows, draw % rows);
      if (is_excluded(row)) continue;
      return {.source = source, .epoch = static_cast<uint32_t>(epoch), .index = row};
    }
  }

  const Spec spec_;
  const RowSource* const rows_;
  std::vector<WeightTree> weights_;  // By source.
  std::vector<SeededShuffle> shuffles_;
};

}  // namespace

std::unique_ptr<RowSampler> MakeLevelSampler(const Spec& spec, const RowSource* rows) {
  return std::make_unique<LevelSampler>(spec, rows);
}

std::unique_ptr<RowSampler> MakeAdaptiveSampler(const Spec& spec, const RowSource* rows) {
  return std::make_unique<AdaptiveSampler>(spec, rows);
}

}  // namespace sluice::queue
