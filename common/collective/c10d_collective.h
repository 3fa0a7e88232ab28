#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/collective/collective.h"
#include "common/collective/rendezvous.h"

namespace sluice {

// Makes this process a rank of a group over LibTorch's c10d: Gloo, over TCP without encryption.
// Waits for all ranks, and connects each with each. `rendezvous` must be empty of an earlier
// group's keys; it is not used later. The process must ignore SIGPIPE, as every daemon does,
// because Gloo writes to connections whose other side may have ended.
// INVALID_ARGUMENT: the rank is not in the world, or the host is not one of this machine.
// RESOURCE_EXHAUSTED: none of the ports is free.
// UNIMPLEMENTED: this LibTorch lets nobody choose the ports.
absl::StatusOr<std::unique_ptr<Collective>> JoinC10d(const Collective::Options& options,
                                                     Rendezvous* rendezvous);

}  // namespace sluice
