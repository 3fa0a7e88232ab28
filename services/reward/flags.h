#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/daemon/daemon.h"
#include "common/run_code/client.h"
#include "common/run_code/http_server.h"

namespace sluice::reward {

inline constexpr char kJudgesFlag[] = "--judges";
inline constexpr char kPluginsFlag[] = "--plugins";
inline constexpr char kPluginServersFlag[] = "--plugin-servers";
inline constexpr char kUnsafeFlag[] = "--unsafe-no-sandbox";

std::vector<daemon::About::Flag> RewardFlags();

// The server whose sandboxes the flags name; null if they name none.
// INVALID_ARGUMENT and others: its address or key is wrong.
absl::StatusOr<std::unique_ptr<run_code::Client>> MakeCodeClient(const daemon::Flags& flags);

// Whether this daemon serves sandboxes to others.
bool ServesCode(const daemon::Flags& flags);
// INVALID_ARGUMENT and others: the flags contradict each other, or the key cannot be read.
absl::StatusOr<run_code::HttpServer::Options> ReadCodeServerFlags(const daemon::Flags& flags);

}  // namespace sluice::reward
