#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/weights/relay_chain.h"
#include "common/weights/transport.h"

namespace sluice {

// What is known when a rollout is about to fetch a version.
struct HolderFacts {
  // Those that can be called, in the order of ListHolders(): ids of rollouts, and kOriginId.
  std::vector<std::string> holders;
  // Those that this rollout may follow without two waiting for each other: the trainer, and then
  // the rollouts before it in the chain, the first one first.
  std::vector<std::string> upstream;
  bool shared_memory = false;  // `weights.shared_memory`.
  bool broadcast = false;      // `weights.broadcast` is set, and the trainer is known.
  bool folder = false;         // `weights.dir` is set.
  // Whether this rollout can read memory over UCX, if `weights.ucx` is true; if not, why not.
  std::optional<absl::Status> ucx;
  // Whether a holder is on this host and shares its memory; if not, why not.
  std::function<absl::Status(const std::string& id)> reach_memory;
  // Whether a fault of it is not long ago, by the key of HolderKey().
  std::function<bool(const std::string& key)> is_avoided;
};

// One who is asked, by one transport.
struct PlannedHolder {
  std::string id;
  const TransportCaps* transport;
  std::string why;  // A sentence for people.
};

// Says who is asked for a version, by which transport and why, in order. The memory of a holder of
// this host comes first, as it costs no link and no copy. All rollouts of a host take the same
// holder, if they can: the trainer, else the first one of the chain; so the host has one staged
// copy. Without it the memory of the nearest holder is read over UCX, if the job wants that; or a
// broadcast is waited for, which brings whole versions alone. Then comes the folder, which costs
// the trainer's link nothing, and then calls. Whatever is first, the others follow, for what it
// does not have and for when it fails.
std::vector<PlannedHolder> PlanHolders(const HolderFacts& facts);

}  // namespace sluice
