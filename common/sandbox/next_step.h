#pragma once

#include <string>

#include "common/sandbox/sandbox.h"

namespace sluice::sandbox {

// What an operator does so that `tier`, which does not work here, works: a sentence without its
// end, made of what this process finds that it lacks.
std::string NextStepFor(Tier tier, const std::string& bubblewrap);

}  // namespace sluice::sandbox
