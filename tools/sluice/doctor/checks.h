#pragma once

#include <vector>

#include "tools/sluice/doctor/doctor.h"

namespace sluice::cli {

std::vector<DoctorCheck> HostChecks();     // host
std::vector<DoctorCheck> DiskChecks();     // disk
std::vector<DoctorCheck> NetChecks();      // net
std::vector<DoctorCheck> BuildChecks();    // build
std::vector<DoctorCheck> PkiChecks();      // pki
std::vector<DoctorCheck> SandboxChecks();  // sandbox
std::vector<DoctorCheck> JobChecks();      // job, policy
std::vector<DoctorCheck> FleetChecks();    // fleet, metrics

}  // namespace sluice::cli
