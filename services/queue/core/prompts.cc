#include "services/queue/core/prompts.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {

std::unique_ptr<RowSampler> MakeSampler(const Spec& spec, const RowSource* rows) {
  switch (spec.sampler) {
    case Sampler::kLevels: return MakeLevelSampler(spec, rows);
    case Sampler::kAdaptive: return MakeAdaptiveSampler(spec, rows);
    default: return nullptr;
  }
}

}  // namespace

Prompts::Prompts(const Spec& spec, std::shared_ptr<const RowSource> rows)
    : seed_(spec.seed),
      epochs_(spec.epochs),
      reissues_(spec.reissues),
      max_staleness_(spec.max_staleness),
      rest_after_(spec.rest_after),
      rest_steps_(spec.rest_steps),
      sources_(spec.sources),
      rows_(std::move(rows)),
      quarantined_(sources_.size()),
      shuffles_(sources_.size()),
      sampler_(MakeSampler(spec, rows_.get())) {
  progress_.drawn.assign(sources_.size(), 0);
  if (sampler_ != nullptr) progress_.sampler.sources.resize(sources_.size());
}

bool Prompts::IsSpent(uint32_t source) const {
  const uint64_t rows = rows_->rows(source);  // A source without rows counts as quarantined.
  return AllQuarantined(source) || (epochs_ > 0 && progress_.drawn[source] >= rows * epochs_);
}

bool Prompts::AllQuarantined(uint32_t source) const {
  return quarantined_[source].size() >= rows_->rows(source);
}

uint64_t Prompts::rows() const {
  uint64_t rows = 0;
  for (uint32_t s = 0; s < sources_.size(); ++s) {
    if (sources_[s].weight > 0) rows += rows_->rows(s);
  }
  return rows;
}

bool Prompts::exhausted() const {
  if (!progress_.again.empty()) return false;
  for (uint32_t s = 0; s < sources_.size(); ++s) {
    if (!IsSpent(s)) return false;
  }
  return true;
}

uint64_t Prompts::ShuffledRow(uint32_t source, uint64_t epoch, uint64_t place) {
  Shuffle& shuffle = shuffles_[source];
  if (shuffle.epoch != epoch) {
    shuffle.epoch = epoch;
    shuffle.order.resize(rows_->rows(source));
    std::iota(shuffle.order.begin(), shuffle.order.end(), 0);
    SplitMix64 random(Mix64(Mix64(seed_ + kGolden * (source + 1)) + kGolden * (epoch + 1)));
    for (uint64_t i = shuffle.order.size(); i > 1; --i)
      std::swap(shuffle.order[i - 1], shuffle.order[random.Below(i)]);
  }
  return shuffle.order[place];
}

std::optional<RowRef> Prompts::Next(int64_t step) {
  if (!progress_.again.empty()) {
    const RowRef row = progress_.again.front();
    progress_.again.erase(progress_.again.begin());
    return row;
  }

  // Take the source that is furthest behind its share of the draws, the first of equals.
  std::optional<uint32_t> next;
  double lowest = 0;
  for (uint32_t s = 0; s < sources_.size(); ++s) {
    if (IsSpent(s)) continue;
    const double share = static_cast<double>(progress_.drawn[s] + 1) / sources_[s].weight;
    if (!next || share < lowest) next = s, lowest = share;
  }

  if (!next) return std::nullopt;
  if (sampler_ != nullptr) return NextByRewards(*next, step);
  const RowRef row = NextFresh(*next);
  ++progress_.drawn[*next];
  SkipQuarantined(*next);
  return row;
}

RowRef Prompts::NextByRewards(uint32_t source, int64_t step) {
  LearnBelow(step - max_staleness_);
  ++progress_.drawn[source];
  SamplerSource* const state = &progress_.sampler.sources[source];

  // If all rows rest, none does: the step has to be filled.
  const bool rests_count = HasRowAwake(source, step);
  const uint32_t level = state->level;
  const RowRef row = sampler_->Draw(source, state, [&, this](uint64_t index) {
    if (quarantined_[source].contains(index)) return true;
    const auto rest = state->rests.find(index);
    return rests_count && rest != state->rests.end() && step < rest->second.until;
  });
  if (state->level != level) {
    state->since_step = step;
    news_.push_back(absl::StrCat("no rows of the level before are left to draw; source ",
                                 sampler_->Describe(source, *state)));
  }
  return row;
}

bool Prompts::HasRowAwake(uint32_t source, int64_t step) const {
  const auto& rests = progress_.sampler.sources[source].rests;
  const uint64_t left = rows_->rows(source) - quarantined_[source].size();
  if (rests.size() < left) return true;
  const auto asleep = std::count_if(rests.begin(), rests.end(), [&](const auto& rest) {
    return step < rest.second.until && !quarantined_[source].contains(rest.first);
  });
  return static_cast<uint64_t>(asleep) < left;
}

// The next fresh draw of the source.
RowRef Prompts::NextFresh(uint32_t source) {
  const uint64_t rows = rows_->rows(source), draw = progress_.drawn[source];
  return {.source = source,
          .epoch = static_cast<uint32_t>(draw / rows),
          .index = ShuffledRow(source, draw / rows, draw % rows)};
}

void Prompts::SkipQuarantined(uint32_t source) {
  if (quarantined_[source].empty() || sampler_ != nullptr) return;
  while (!IsSpent(source) && quarantined_[source].contains(NextFresh(source).index))
    ++progress_.drawn[source];
}

Prompts::Fate Prompts::Reissue(const RowRef& row) {
  if (quarantined_[row.source].contains(row.index)) return Fate::kWasQuarantined;
  if (row.occurrence >= reissues_) {
    Quarantine(row);
    return Fate::kQuarantined;
  }
  Return(row);
  return Fate::kAgain;
}

bool Prompts::Quarantine(const RowRef& row) {
  if (!quarantined_[row.source].insert(row.index).second) return false;
  progress_.quarantined.push_back(row);
  std::erase_if(progress_.again, [&](const RowRef& other) {
    return other.source == row.source && other.index == row.index;
  });
  SkipQuarantined(row.source);
  return true;
}

void Prompts::Return(const RowRef& row) {
  RowRef next = row;
  ++next.occurrence;
  progress_.again.push_back(next);
}

uint32_t Prompts::Readmit(const std::function<bool(const RowRef&)>& which) {
  std::vector<RowRef> left;
  for (const RowRef& row : progress_.quarantined) {
    if (which(row)) {
      Return(row);
    } else {
      left.push_back(row);
    }
  }
  const auto count = static_cast<uint32_t>(progress_.quarantined.size() - left.size());
  progress_.quarantined = std::move(left);
  IndexQuarantined();
  return count;
}

void Prompts::NoteTrained(const GroupResult& result) {
  if (sampler_ == nullptr || result.answers == 0 || !HasRow(result.row)) return;
  if (result.step < progress_.sampler.noted) return;
  std::vector<GroupResult>& pending = progress_.sampler.pending;
  const auto later = [](int64_t step, const GroupResult& other) { return step < other.step; };
  pending.insert(std::upper_bound(pending.begin(), pending.end(), result.step, later), result);
}

void Prompts::NoteRejected(const GroupResult& result) {
  if (sampler_ != nullptr && result.answers > 0 && HasRow(result.row)) Learn(result);
}

void Prompts::NoteStep(int64_t k) {
  progress_.sampler.noted = std::max(progress_.sampler.noted, k + 1);
}

// Takes in the results of all steps below `step`.
void Prompts::LearnBelow(int64_t step) {
  std::vector<GroupResult>& pending = progress_.sampler.pending;
  auto it = pending.begin();
  for (; it != pending.end() && it->step < step; ++it) Learn(*it);
  if (it == pending.begin()) return;
  pending.erase(pending.begin(), it);
  // They are part of each checkpoint, so what no later draw goes by is not kept.
  for (SamplerSource& source : progress_.sampler.sources) {
    std::erase_if(source.rests, [&](const auto& rest) {
      return rest.second.perfect == 0 && rest.second.until <= step;
    });
  }
}

void Prompts::Learn(const GroupResult& result) {
  std::string news = sampler_->Learn(result, &progress_.sampler.sources[result.row.source]);
  if (!news.empty()) news_.push_back(std::move(news));
  if (rest_after_ > 0) LearnRest(result);
}

void Prompts::LearnRest(const GroupResult& result) {
  auto& rests = progress_.sampler.sources[result.row.source].rests;
  if (!result.perfect) {
    rests.erase(result.row.index);
    return;
  }
  RowRest& rest = rests[result.row.index];
  if (++rest.perfect < rest_after_) return;
  rest = {.perfect = 0, .until = result.step + 1 + rest_steps_};
}

std::vector<std::string> Prompts::DescribeSampler() const {
  std::vector<std::string> sentences;
  for (uint32_t s = 0; sampler_ != nullptr && s < sources_.size(); ++s) {
    if (rows_->rows(s) == 0) continue;
    const SamplerSource& state = progress_.sampler.sources[s];
    sentences.push_back(sampler_->Describe(s, state));
    if (rest_after_ == 0) continue;
    const auto resting = std::count_if(
        state.rests.begin(), state.rests.end(),
        [&](const auto& rest) { return progress_.sampler.noted < rest.second.until; });
    absl::StrAppend(&sentences.back(), "; ", resting, " rest");
  }
  return sentences;
}

Row Prompts::Read(const RowRef& ref) const {
  return {
      .ref = ref, .source = sources_[ref.source].name, .json = rows_->json(ref.source, ref.index)};
}

bool Prompts::Fits(const Progress& progress) const {
  const SamplerState& sampler = progress.sampler;
  const auto has = [&](const RowRef& row) { return HasRow(row); };
  if (progress.drawn.size() != sources_.size() ||
      !std::all_of(progress.again.begin(), progress.again.end(), has) ||
      !std::all_of(progress.quarantined.begin(), progress.quarantined.end(), has) ||
      sampler.sources.size() != (sampler_ == nullptr ? 0 : sources_.size()))
    return false;

  for (uint32_t s = 0; s < sampler.sources.size(); ++s) {
    const auto& rests = sampler.sources[s].rests;
    const bool has_rows = rests.empty() || rests.rbegin()->first < rows_->rows(s);
    if (!has_rows || !sampler_->IsValid(s, sampler.sources[s])) return false;
  }
  return std::all_of(
      sampler.pending.begin(), sampler.pending.end(),
      [&](const GroupResult& result) { return result.answers > 0 && HasRow(result.row); });
}

void Prompts::Reset(Progress progress) {
  SLUICE_CHECK(Fits(progress));
  progress_ = std::move(progress);
  if (sampler_ != nullptr) sampler_->Rebuild(progress_.sampler.sources);
  IndexQuarantined();
}

void Prompts::ResetSampler(SamplerState state) {
  if (sampler_ == nullptr) return;
  state.sources.resize(sources_.size());  // The run begins anew if there are none.
  for (uint32_t s = 0; s < sources_.size(); ++s) {
    const SamplerSource& now = progress_.sampler.sources[s];
    SamplerSource& then = state.sources[s];
    if (then.level == now.level) then.drawn = std::max(then.drawn, now.drawn);
    then.weighted = std::max(then.weighted, now.weighted);
    then.uniform = std::max(then.uniform, now.uniform);
  }
  progress_.sampler = std::move(state);
  sampler_->Rebuild(progress_.sampler.sources);
}

void Prompts::IndexQuarantined() {
  for (std::set<uint64_t>& rows : quarantined_) rows.clear();
  for (const RowRef& row : progress_.quarantined) quarantined_[row.source].insert(row.index);
  for (uint32_t source = 0; source < sources_.size(); ++source) SkipQuarantined(source);
}

}  // namespace sluice::queue
