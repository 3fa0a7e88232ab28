#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/queue/core/types.h"

namespace sluice::queue {

// Which steps were trained on which generations of the rewards (see TaskQueue), so that it can be
// told later which weights a faulty reward has touched.
class Lineage {
 public:
  struct Generation {
    // The version of each reward by its name, as the first worker of the generation gave them.
    std::map<std::string, std::string> rewards;
    // The steps that trained groups of it, as ranges [first, last], ascending.
    std::vector<std::pair<int64_t, int64_t>> steps;
  };

  // A worker scores by this generation. What a later one says of the same generation is ignored.
  void NoteRewards(uint32_t generation, const std::map<std::string, std::string>& rewards);
  // The step is trained, on groups of these generations. What is noted of this step and later ones
  // is forgotten: it lies on a branch that was given up.
  void NoteStep(int64_t step, const std::set<uint32_t>& generations);
  // As noted when `steps` steps were trained: without later ones.
  std::map<uint32_t, Generation> Until(int64_t steps) const;
  void Reset(std::map<uint32_t, Generation> generations);

 private:
  friend struct Access;  // dump.cc

  // At most kMost, of which those without a step are forgotten first.
  std::map<uint32_t, Generation> generations_;
};

}  // namespace sluice::queue
