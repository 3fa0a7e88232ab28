#include "services/controller/core/why.h"

#include <algorithm>
#include <deque>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::controller {
namespace {

std::string KeyOf(const Node& node) {
  return absl::StrCat(node.kind, " ", node.id,
                      node.kind == "CALL" ? absl::StrCat("@", node.daemon) : "");
}

Node DaemonNode(const std::string& id) { return {"DAEMON", id, id}; }
bool IsFault(const Edge& edge) { return KeyOf(edge.waiter) == KeyOf(edge.on); }

class Joiner {
 public:
  explicit Joiner(const Waits& waits) : waits_(waits), edges_(waits.edges) {
    for (const std::string& daemon : waits.silent) {
      edges_.push_back({DaemonNode(daemon), DaemonNode(daemon), absl::ZeroDuration(),
                        absl::StrCat(daemon, " does not answer"), "", -absl::Seconds(1),
                        absl::StrCat("see the log of ", daemon,
                                     "; if it hangs, kill it: its work goes on elsewhere")});
    }
    for (const Edge& edge : edges_) from_[KeyOf(edge.waiter)].push_back(&edge);
    for (const Edge& edge : edges_) {
      if (edge.waiter.kind == "STEP") steps_[edge.waiter.daemon].push_back(&edge);
      if (edge.waiter.kind == "CALL") calls_[edge.waiter.daemon].push_back(&edge);
    }
  }

  std::vector<Edge> BestChain() const {
    std::vector<Edge> chain = ShortestToFault();
    return chain.empty() ? LongestWaits() : chain;
  }

 private:
  // Orders the job's own edges: to the queue, to trainers, to others. All other edges are equal.
  int Rank(const Edge& edge) const {
    if (KeyOf(edge.waiter) != KeyOf(waits_.root)) return 0;
    const auto role = waits_.roles.find(edge.on.daemon);
    if (role == waits_.roles.end()) return 3;
    return role->second == "queue" ? 0 : role->second == "trainer" ? 1 : 2;
  }

  // All edges that lead on from a node, best first. Faults come first, because the chain ends
  // there.
  std::vector<Edge> EdgesFrom(const Node& node) const {
    std::vector<Edge> onward;
    const auto take = [&](const std::map<std::string, std::vector<const Edge*>>& index,
                          const std::string& key) {
      const auto it = index.find(key);
      if (it != index.end())
        for (const Edge* edge : it->second) onward.push_back(*edge);
    };
    take(from_, KeyOf(node));
    if (node.kind == "DAEMON") take(steps_, node.id);

    // A node without edges leads to the daemon that knows it; a role leads to its daemons.
    const bool dead_end = onward.empty();
    for (const auto& [daemon, role] : waits_.roles) {
      const bool of_role = node.kind == "DAEMON" && node.id == role;
      if (of_role) take(calls_, daemon);
      const bool knows = node.daemon == role || (node.daemon == daemon && node.id != daemon);
      if (of_role || (dead_end && knows)) {
        onward.push_back({node, DaemonNode(daemon), absl::ZeroDuration(), "", ""});
      }
    }
    std::stable_sort(onward.begin(), onward.end(), [&](const Edge& a, const Edge& b) {
      return std::make_tuple(!IsFault(a), Rank(a), -a.since) <
             std::make_tuple(!IsFault(b), Rank(b), -b.since);
    });
    return onward;
  }

  // The shortest chain from the root to a fault, or empty if no fault can be reached. The search is
  // breadth-first, so the first fault found is the nearest.
  std::vector<Edge> ShortestToFault() const {
    struct Step {
      Edge edge;
      int before;  // Index of the edge before it in `steps`; -1 at the root.
    };
    std::deque<Step> steps;  // Each edge that was the first to reach a node.
    std::set<std::string> seen = {KeyOf(waits_.root)};
    std::deque<std::pair<Node, int>> next = {{waits_.root, -1}};
    while (!next.empty()) {
      const auto [node, before] = next.front();
      next.pop_front();
      for (const Edge& edge : EdgesFrom(node)) {
        const bool fault = IsFault(edge);
        if (!fault && !seen.insert(KeyOf(edge.on)).second) continue;
        steps.push_back({edge, before});
        const int at = static_cast<int>(steps.size()) - 1;
        if (!fault) {
          next.emplace_back(edge.on, at);
          continue;
        }
        std::vector<Edge> chain;
        for (int i = at; i >= 0; i = steps[i].before) chain.push_back(steps[i].edge);
        std::reverse(chain.begin(), chain.end());
        return chain;
      }
    }
    return {};
  }

  // The chain that takes the best edge at each node, until nothing new can be reached.
  std::vector<Edge> LongestWaits() const {
    std::vector<Edge> chain;
    std::set<std::string> seen = {KeyOf(waits_.root)};
    Node at = waits_.root;
    while (true) {
      const std::vector<Edge> onward = EdgesFrom(at);
      const auto edge = std::find_if(onward.begin(), onward.end(), [&](const Edge& e) {
        return seen.insert(KeyOf(e.on)).second;
      });
      if (edge == onward.end()) break;
      chain.push_back(*edge);
      at = edge->on;
    }
    // Edges without a cause only lead to a daemon; if it has nothing to say, they are of no use at
    // the end.
    while (!chain.empty() && chain.back().cause.empty()) chain.pop_back();
    return chain;
  }

  const Waits& waits_;
  std::vector<Edge> edges_;
  std::map<std::string, std::vector<const Edge*>> from_;  // By the key of the waiter.
  // By the id of the daemon that they belong to.
  std::map<std::string, std::vector<const Edge*>> steps_, calls_;
};

}  // namespace

std::vector<Edge> FindChain(const Waits& waits) { return Joiner(waits).BestChain(); }

std::string ChainText(const std::vector<Edge>& chain) {
  std::vector<std::string> causes;
  std::string hint;
  for (size_t i = 0; i < chain.size(); ++i) {
    // Skip the edge that leads to a batch: the next edge says what the batch lacks.
    const bool passing = chain[i].on.kind == "BATCH" && i + 1 < chain.size();
    if (!chain[i].cause.empty() && !passing) causes.push_back(chain[i].cause);
    if (!chain[i].hint.empty()) hint = chain[i].hint;
  }
  return absl::StrCat(absl::StrJoin(causes, " <- "), hint.empty() ? "" : "; you could: ", hint);
}

}  // namespace sluice::controller
