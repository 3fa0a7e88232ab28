#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/ucx/ucx.h"
#include "tests/integration/harness/process.h"

namespace sluice {

// A process of its own whose memory can be read; see ucx_peer.cc.
struct UcxHostProcess {
  std::unique_ptr<integration::Process> process;
  UcxPlace place;  // Of all its PeerBytes().

  static absl::StatusOr<UcxHostProcess> Start(const std::string& devices, uint64_t seed,
                                              uint64_t bytes);
};

// A process that reads from a place again and again.
absl::StatusOr<std::unique_ptr<integration::Process>> StartUcxReader(const std::string& devices,
                                                                     const UcxPlace& place);

}  // namespace sluice
