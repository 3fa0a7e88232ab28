#include "services/queue/core/prompts.h"

#include <numeric>

#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice::queue {

Prompts::Prompts(const Spec& spec, std::shared_ptr<const RowSource> rows)
    : seed_(spec.seed),
      epochs_(spec.epochs),
      reissues_(spec.reissues),
      sources_(spec.sources),
      rows_(std::move(rows)),
      quarantined_(sources_.size()),
      shuffles_(sources_.size()) {
  progress_.drawn.assign(sources_.size(), 0);
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

std::optional<RowRef> Prompts::Next() {
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
  const RowRef row = NextFresh(*next);
  ++progress_.drawn[*next];
  SkipQuarantined(*next);
  return row;
}

// The next fresh draw of the source.
RowRef Prompts::NextFresh(uint32_t source) {
  const uint64_t rows = rows_->rows(source), draw = progress_.drawn[source];
  return {.source = source,
          .epoch = static_cast<uint32_t>(draw / rows),
          .index = ShuffledRow(source, draw / rows, draw % rows)};
}

void Prompts::SkipQuarantined(uint32_t source) {
  if (quarantined_[source].empty()) return;
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

Row Prompts::Read(const RowRef& ref) const {
  return {
      .ref = ref, .source = sources_[ref.source].name, .json = rows_->json(ref.source, ref.index)};
}

void Prompts::Reset(Progress progress) {
  SLUICE_CHECK(progress.drawn.size() == sources_.size());
  progress_ = std::move(progress);
  IndexQuarantined();
}

void Prompts::IndexQuarantined() {
  for (std::set<uint64_t>& rows : quarantined_) rows.clear();
  for (const RowRef& row : progress_.quarantined) quarantined_[row.source].insert(row.index);
  for (uint32_t source = 0; source < sources_.size(); ++source) SkipQuarantined(source);
}

}  // namespace sluice::queue
