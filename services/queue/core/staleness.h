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
  void Fork(int64_t incarnation, int64_t fork) { forks_.push_back({incarnation, fork}); }
  bool Holds(const PolicyVersion& version) const;
  const std::vector<std::pair<int64_t, int64_t>>& forks() const { return forks_; }

 private:
  friend struct Access;                             // dump.cc
  std::vector<std::pair<int64_t, int64_t>> forks_;  // Incarnation, fork.
};

// What training a member in step k would mean.
struct Verdict {
  bool legal = true;
  const char* reason = "";  // stale or off_branch, where not legal.
  uint64_t trained = 0;     // Tokens that are trained.
  uint64_t masked_count = 0;
  std::vector<TokenRun> masked;          // Trainable tokens left out, merged.
  PolicyVersion oldest, newest;          // Of the trained ones; zero if there are none.
  std::map<int64_t, int64_t> histogram;  // Trained tokens by staleness k - b.
};

// The hard bound: a trainable token sampled at version b may be trained in step k if k - b <=
// eta and b is on the branch. With `masked` the others leave the mask, and the member is illegal if
// that leaves fewer than min_trainable; with `strict` one such token makes it illegal.
Verdict Judge(const GroupMember& member, int64_t k, const Spec& spec, const Branch& branch);

// Trained tokens of the member that break the bound in step k, given what was masked at the cut. A
// queue without faults gives 0.
uint64_t OverAge(const GroupMember& member, const std::vector<TokenRun>& masked, int64_t k,
                 const Spec& spec, const Branch& branch);

}  // namespace sluice::queue
