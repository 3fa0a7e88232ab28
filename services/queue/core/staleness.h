#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "services/queue/core/group.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// Which versions lie on the job's branch. When the trainers of incarnation i restore with fork f,
// versions of lower incarnations stay on the branch up to number f.
class Branch {
 public:
  void AddFork(int64_t incarnation, int64_t fork) { forks_.push_back({incarnation, fork}); }
  bool Holds(const PolicyVersion& version) const;
  const std::vector<std::pair<int64_t, int64_t>>& forks() const { return forks_; }

 private:
  friend struct Access;                             // dump.cc
  std::vector<std::pair<int64_t, int64_t>> forks_;  // Incarnation, fork.
};

// Whether step k may train a member, and which of its tokens.
struct Verdict {
  bool trainable = true;    // Whether it may.
  const char* reason = "";  // If it may not: stale or off_branch.
  uint64_t trained = 0;     // Tokens that are trained.
  uint64_t masked_count = 0;
  std::vector<TokenRun> masked;          // Trainable tokens left out, merged.
  PolicyVersion oldest, newest;          // Of the trained ones; zero if there are none.
  std::map<int64_t, int64_t> histogram;  // Trained tokens by staleness.
};

// The hard bound: a trainable token sampled at version b may be trained in step k if its staleness
// k - b is at most eta (max_staleness) and b is on the branch. With the statistic `masked` other
// tokens are masked, and the member may not be trained if that leaves fewer than min_trainable.
// With `strict` the member may not be trained if it has even one such token.
Verdict Judge(const GroupMember& member, int64_t k, const Spec& spec, const Branch& branch);

// How many tokens of the member break the bound in step k, apart from those masked at the cut. It
// is 0 unless the queue has a fault.
uint64_t CountOutOfBounds(const GroupMember& member, const std::vector<TokenRun>& masked, int64_t k,
                          const Spec& spec, const Branch& branch);

}  // namespace sluice::queue
