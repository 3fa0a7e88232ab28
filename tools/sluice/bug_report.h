#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/channel.h"
#include "tools/sluice/doctor/doctor.h"
#include "tools/sluice/scrub.h"

// `sluice bug-report`: what somebody else needs to understand a problem, in one file.
namespace sluice::cli {

// Paths below the report's folder, and the texts of these files.
using ReportFiles = std::map<std::string, std::string>;

// What this process knows of itself and the host: versions, names of environment variables,
// doctor's output, and the last lines of the logs of a fleet of `dev up`.
ReportFiles CollectHost(const DoctorInputs& inputs,
                        const std::map<std::string, std::string>& environment,
                        const Scrubber& scrub);

// What the controller tells: jobs, daemons and, for each of `jobs` (names or ids; empty: those that
// have not ended and the newest three that have), status, events, steps, waits and the log lines
// that its daemons keep in memory. What cannot be had is replaced by the error.
ReportFiles CollectFleet(const rpc::Channel& channel, const std::vector<std::string>& jobs,
                         const Scrubber& scrub);

// The metrics pages of the daemons that can be reached from here.
ReportFiles CollectMetrics(const DoctorInputs& inputs, const Scrubber& scrub);

// Writes a tar.gz with the files in the folder `name`. Only its owner may read it. ALREADY_EXISTS:
// there is a file `path`.
absl::Status WriteReport(const std::string& path, const std::string& name,
                         const ReportFiles& files);

}  // namespace sluice::cli
