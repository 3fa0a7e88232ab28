#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/sluice/supervisor.h"

namespace sluice::cli {

// The certificates of a fleet on one machine. A new authority signs them at each start of the
// fleet, and its key is then forgotten. So they are worth nothing for any other fleet.

// The TLS folder of a daemon of the fleet on `data_dir`, or of its operator.
std::string FleetTlsDir(const std::string& data_dir, const std::string& name);
// The name of the operator's folder, and of the operator.
inline constexpr char kFleetOperator[] = "operator";

// Writes the TLS folders of all `daemons` and of the operator.
absl::Status IssueFleetCertificates(const std::string& data_dir,
                                    const std::vector<DaemonSpec>& daemons);

// Makes this process the operator of the fleet. Does nothing for a fleet without certificates.
absl::Status BecomeOperator(const std::string& data_dir);

}  // namespace sluice::cli
