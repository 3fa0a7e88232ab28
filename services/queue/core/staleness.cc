#include "services/queue/core/staleness.h"

#include <algorithm>

namespace sluice::queue {

bool Branch::Holds(const PolicyVersion& version) const {
  return std::none_of(forks_.begin(), forks_.end(), [&](const auto& fork) {
    return version.incarnation < fork.first && version.number > fork.second;
  });
}

Verdict Judge(const GroupMember& member, int64_t k, const Spec& spec, const Branch& branch) {
  Verdict verdict;
  bool off_branch = false;
  ForEachTrainable(member, [&](uint64_t first, uint64_t count, const PolicyVersion& version) {
    const bool on_branch = branch.Holds(version);
    if (on_branch && k - version.number <= spec.max_staleness) {
      if (verdict.trained == 0) verdict.oldest = verdict.newest = version;
      verdict.oldest = std::min(verdict.oldest, version);
      verdict.newest = std::max(verdict.newest, version);
      verdict.trained += count;
      verdict.histogram[k - version.number] += count;
      return;
    }

    off_branch |= !on_branch;
    verdict.masked_count += count;
    if (!verdict.masked.empty() &&
        verdict.masked.back().first + verdict.masked.back().count == first) {
      verdict.masked.back().count += count;
    } else {
      verdict.masked.push_back({first, count});
    }
  });

  const uint64_t needed = spec.statistic == Statistic::kStrict
                              ? verdict.trained + verdict.masked_count
                              : spec.min_trainable;
  if (verdict.masked_count > 0 && verdict.trained < needed) {
    verdict.trainable = false;
    verdict.reason = off_branch ? "off_branch" : "stale";
  }
  return verdict;
}

uint64_t CountOutOfBounds(const GroupMember& member, const std::vector<TokenRun>& masked, int64_t k,
                          const Spec& spec, const Branch& branch) {
  uint64_t over = 0;
  size_t next = 0;
  ForEachTrainable(member, [&](uint64_t first, uint64_t count, const PolicyVersion& version) {
    if (branch.Holds(version) && k - version.number <= spec.max_staleness) return;
    for (uint64_t place = first; place < first + count; ++place) {
      while (next < masked.size() && masked[next].first + masked[next].count <= place) ++next;
      if (next == masked.size() || place < masked[next].first) ++over;
    }
  });
  return over;
}

}  // namespace sluice::queue
