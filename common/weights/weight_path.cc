#include "common/weights/weight_path.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace sluice {

// Dijkstra's search.
std::vector<WeightStep> FindWeightPath(absl::Span<const WeightEdge> edges,
                                       const std::optional<Fingerprint>& held,
                                       const Fingerprint& target) {
  const std::string nothing;                     // States have 16 bytes.
  std::multimap<std::string, WeightStep> steps;  // By the state where they begin.
  for (const WeightEdge& edge : edges) {
    steps.emplace(edge.base.has_value() ? edge.base->bytes() : nothing, WeightStep{edge});
    if (edge.base.has_value())
      steps.emplace(edge.version.state.bytes(), WeightStep{edge, /*backward=*/true});
  }
  const auto end_of = [](const WeightStep& step) {
    return (step.backward ? *step.edge.base : step.edge.version.state).bytes();
  };

  struct Found {
    uint64_t bytes = 0;
    const WeightStep* last = nullptr;  // Null where paths begin.
    std::string before;
    bool done = false;
  };
  std::map<std::string, Found> found;
  std::set<std::pair<uint64_t, std::string>> open;
  for (const std::string& begin : {nothing, held.has_value() ? held->bytes() : nothing}) {
    found[begin] = {};
    open.emplace(0, begin);
  }
  while (!open.empty()) {
    const auto [bytes, state] = *open.begin();
    open.erase(open.begin());
    if (std::exchange(found[state].done, true)) continue;
    const auto [first, last] = steps.equal_range(state);
    for (auto it = first; it != last; ++it) {
      const std::string to = end_of(it->second);
      const uint64_t total = bytes + it->second.edge.bytes;
      const auto [known, fresh] = found.try_emplace(to);
      if (!fresh && (known->second.done || known->second.bytes <= total)) continue;
      known->second = {.bytes = total, .last = &it->second, .before = state};
      open.emplace(total, to);
    }
  }

  std::vector<WeightStep> path;
  for (auto at = found.find(target.bytes()); at != found.end() && at->second.last != nullptr;
       at = found.find(at->second.before))
    path.push_back(*at->second.last);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace sluice
