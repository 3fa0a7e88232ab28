#include "services/trainer/core/ranks.h"

#include <algorithm>
#include <cstring>

#include "absl/algorithm/container.h"
#include "common/collective/collective.h"
#include "services/trainer/core/updater.h"

namespace sluice::trainer {

std::vector<int> DealSequences(absl::Span<const Sequence> sequences, int64_t shared_above,
                               std::vector<int64_t>* loads) {
  struct Run {
    size_t first, count;
    int64_t tokens;
  };
  std::vector<Run> groups;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (i == 0 || sequences[i].group != sequences[i - 1].group) groups.push_back({i, 0, 0});
    ++groups.back().count;
    const int64_t tokens = static_cast<int64_t>(sequences[i].tokens.size());
    if (shared_above == 0 || tokens <= shared_above) groups.back().tokens += tokens;
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Run& a, const Run& b) { return a.tokens > b.tokens; });

  std::vector<int> ranks(sequences.size());
  for (const Run& group : groups) {
    const auto least = std::min_element(loads->begin(), loads->end());
    *least += group.tokens;
    std::fill_n(ranks.begin() + static_cast<int64_t>(group.first), group.count,
                static_cast<int>(least - loads->begin()));
  }
  return ranks;
}

Ranks::Ranks(Collective* collective, int64_t shared_above)
    : collective_(collective),
      passes_(collective),
      shared_above_(shared_above),
      rank_(collective == nullptr ? 0 : collective->rank()),
      world_(collective == nullptr ? 1 : collective->world()) {
  BeginStep();
}

void Ranks::BeginStep() { loads_.assign(static_cast<size_t>(world_), 0); }

std::vector<Sequence> Ranks::Share(std::vector<Sequence> sequences) {
  if (!many()) return sequences;
  const std::vector<int> ranks = DealSequences(sequences, shared_above_, &loads_);
  std::vector<Sequence> mine;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (ranks[i] == rank_) mine.push_back(std::move(sequences[i]));
  }
  return mine;
}

absl::Status Ranks::Merge(UpdateSums* sums) {
  static_assert(std::is_trivially_copyable_v<UpdateSums>);
  if (!many()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                          Gather({reinterpret_cast<const char*>(sums), sizeof(*sums)}));
  *sums = UpdateSums();
  for (const std::string& part : parts) {
    UpdateSums other;
    SLUICE_CHECK(part.size() == sizeof(other));
    std::memcpy(static_cast<void*>(&other), part.data(), sizeof(other));
    sums->Merge(other);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Ranks::Gather(absl::string_view mine) {
  SLUICE_RETURN_IF_ERROR(passes_.AwaitOthers());
  return collective_->Gather(mine);
}

}  // namespace sluice::trainer
