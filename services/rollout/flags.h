#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/daemon/daemon.h"

namespace sluice {
class CoreShare;
}

namespace sluice::rollout {

// What the flags of the rollout daemon say, besides those that all daemons have.
struct RolloutOptions {
  absl::Duration grace;  // Time that running answers get to end when the daemon drains.
  std::string http;      // IP:PORT of the OpenAI-compatible API; empty: no API.
  // Paths of files; empty: no keys, no TLS.
  std::string http_keys;
  std::string http_cert, http_cert_key;
  std::map<std::string, std::string> adapters;  // The API's LoRA adapters: directory by name.
  std::shared_ptr<CoreShare> cores;             // The cores that the sessions compute on.
  absl::StatusOr<std::string> ucx_devices;      // See daemon::UcxDevices().
};

// The flags that only this daemon has.
std::vector<daemon::About::Flag> RolloutFlags();

// INVALID_ARGUMENT: the value of a flag is wrong, or flags do not go together. Errors are also
// those of daemon::OpenCores() and daemon::CheckUcxFlag().
absl::StatusOr<RolloutOptions> ReadRolloutFlags(const daemon::Flags& flags);

}  // namespace sluice::rollout
