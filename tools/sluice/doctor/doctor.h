#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"
#include "sluice/admin/v1/admin.pb.h"
#include "tools/sluice/fleet.h"

// `sluice doctor`: small checks of this host, of folders and files, and of a fleet. A check changes
// nothing that stays, and ends within a few seconds.
namespace sluice::cli {

// What the controller of a fleet answered.
struct FleetAnswer {
  std::string address;  // Of the controller.
  admin::v1::DaemonsResponse daemons;
  // This host's clock when the call began and when it was answered.
  absl::Time asked, answered;
};

// What the checks look at. A test plants a fault by pointing a field at something broken.
struct DoctorInputs {
  // Of this host.
  std::string proc = "/proc";                 // Where the kernel tells about it.
  std::string cgroup = "/sys/fs/cgroup";      // Where the files of the cgroups are.
  std::string shm = "/dev/shm";               // The folder for shared memory.
  absl::Time now;                             // The wall clock.
  std::vector<std::string> listen;            // HOST:PORT at which daemons here would listen.
  std::string program_dir;                    // Holds the programs of the daemons.
  std::function<absl::Duration()> monotonic;  // A clock to measure with.

  // Folders and files. Empty: there is none to check.
  std::string data_dir;
  std::string tls_dir;
  // The Redis of the controllers, as their flags name it.
  std::string store, store_password_file, store_ca;
  std::string policy_file;
  std::string job_file;
  std::vector<std::string> sets;  // --set of the job file.

  // A fleet. `local` is set if it was started by `dev up` on this host. `server` is empty if nobody
  // named a fleet and none runs here; else `answer` tells what its controller said.
  std::optional<FleetState> local;
  std::string server;
  absl::StatusOr<FleetAnswer> answer = absl::UnavailableError("no fleet was asked");
};

enum class Outcome { kOk, kWarn, kFail, kSkip };

// The result of a check.
struct Finding {
  Outcome outcome = Outcome::kOk;
  std::string found;  // What was seen: the thing, its value, the limit.
  std::string fix;    // What to do. Empty if there is nothing to do.
};

Finding Pass(std::string found);
Finding Warn(std::string found, std::string fix);
Finding Fail(std::string found, std::string fix);
// There is nothing to check; `why` says what to give.
Finding Skip(std::string why);

struct DoctorCheck {
  const char* group;  // "disk"
  const char* name;   // "space"
  const char* what;   // What holds if it passes, for the help.
  Finding (*run)(const DoctorInputs&);
};

// All checks, in the order in which they are shown.
const std::vector<DoctorCheck>& DoctorChecks();

// The checks that `names` select: a group ("disk") or one check ("disk.space"). All if it is empty.
// INVALID_ARGUMENT: a name selects nothing.
absl::StatusOr<std::vector<const DoctorCheck*>> SelectChecks(absl::Span<const std::string> names);

struct DoctorResult {
  const DoctorCheck* check = nullptr;
  Finding finding;
};

// Runs the checks at the same time, on threads of their own. The results are in the same order.
std::vector<DoctorResult> RunChecks(absl::Span<const DoctorCheck* const> checks,
                                    const DoctorInputs& inputs);

// The results as a table with a last line that counts them.
std::string DoctorText(absl::Span<const DoctorResult> results);
nlohmann::ordered_json DoctorJson(absl::Span<const DoctorResult> results);
// Whether a check failed.
bool HasFailure(absl::Span<const DoctorResult> results);

}  // namespace sluice::cli
