#pragma once

#include <string>

#include "tests/deploy/manifest.h"

namespace sluice::deploy {

// The lines in which a manifest differs from tests/golden/deploy/<name>.txt, and how to accept
// them; empty if there are none. With SLUICE_UPDATE_GOLDEN set, it writes the file instead.
std::string CompareWithGolden(const std::string& name, const Manifest& manifest);

}  // namespace sluice::deploy
