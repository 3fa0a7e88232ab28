#pragma once

#include <string>

#include "tools/sluice/doctor/doctor.h"

namespace sluice::cli {

// What `sluice doctor` looks at on this host: `data_dir`, else that of `dev up`; `tls_dir`, else
// $SLUICE_TLS; and the fleet that `server` names (FindController()), which it asks for its daemons.
DoctorInputs MakeDoctorInputs(const std::string& data_dir, const std::string& tls_dir,
                              const std::string& server);

}  // namespace sluice::cli
