#include "services/controller/core/why.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

namespace sluice::controller {
namespace {

bool Same(const Node& a, const Node& b) { return a.kind == b.kind && a.id == b.id; }

// The unused edge that fits and has waited longest; null: none.
const Edge* Longest(const std::vector<Edge>& edges, const std::set<const Edge*>& used,
                    const std::function<bool(const Edge&)>& fits) {
  const Edge* best = nullptr;
  for (const Edge& edge : edges) {
    if (used.count(&edge) > 0 || !fits(edge)) continue;
    if (best == nullptr || edge.since > best->since) best = &edge;
  }
  return best;
}

}  // namespace

std::vector<Edge> Chain(const Node& root, const std::vector<std::string>& trainers, std::vector<Edge> edges) {
  std::vector<Edge> chain;
  std::set<const Edge*> used;
  Node at = root;
  while (true) {
    const Edge* next = Longest(edges, used, [&](const Edge& edge) { return Same(edge.waiter, at); });
    if (next == nullptr && (chain.empty() || Same(chain.back().waiter, root))) {
      const auto of_trainer = [&](const Edge& edge) {
        return std::find(trainers.begin(), trainers.end(), edge.waiter.daemon) != trainers.end();
      };
      next = Longest(edges, used, of_trainer);
      if (next == nullptr && chain.empty()) next = Longest(edges, used, [](const Edge&) { return true; });
    }
    if (next == nullptr) return chain;
    used.insert(next);
    chain.push_back(*next);
    at = next->on;
  }
}

}  // namespace sluice::controller
