#pragma once

#include <functional>
#include <string>
#include <vector>

#include "services/controller/core/controller.h"

namespace sluice::controller {
class Peers;

// Asks all daemons of a job at once what they wait for, each for at most 2 s, and joins their
// answers with what the controller knows. `done` runs once, usually on a thread of `peers`, but
// perhaps on this one before the call returns. `silent` are the ids of the daemons that are lost or
// did not answer. Call it on the loop's thread.
void Diagnose(
    Peers& peers, const Controller& core, Instant now, const Job& job,
    std::function<void(const std::vector<Edge>& chain, const std::vector<std::string>& silent)>
        done);

}  // namespace sluice::controller
