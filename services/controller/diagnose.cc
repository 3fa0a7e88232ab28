#include "services/controller/diagnose.h"

#include <utility>

#include "services/controller/peers.h"

namespace sluice::controller {

void Diagnose(
    Peers& peers, const Controller& core, Instant now, const Job& job,
    std::function<void(const std::vector<Edge>& chain, const std::vector<std::string>& silent)>
        done) {
  Waits waits = core.WaitsOf(now, job);
  std::vector<Peers::Target> targets;
  std::vector<std::string> lost;
  for (const auto& [daemon, role] : waits.roles) {
    const auto it = core.fleet().daemons().find(daemon);
    const bool there = it != core.fleet().daemons().end() && it->second.present();
    if (there) targets.push_back({daemon, core.AddressOf(daemon)});
    else lost.push_back(daemon);
  }

  peers.Explain(job.record.id, std::move(targets),
                [waits = std::move(waits), lost = std::move(lost), done = std::move(done)](
                    std::vector<Edge> edges, std::vector<std::string> silent) mutable {
                  waits.edges.insert(waits.edges.end(), edges.begin(), edges.end());
                  // WaitsOf() has a fault edge for each lost daemon, so only the others are added.
                  waits.silent.insert(silent.begin(), silent.end());
                  lost.insert(lost.end(), silent.begin(), silent.end());
                  done(FindChain(waits), lost);
                });
}

}  // namespace sluice::controller
