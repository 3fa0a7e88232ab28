#pragma once

#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "absl/status/statusor.h"
#include "common/collective/collective.h"

namespace sluice {

// The process group of LibTorch that a Collective moves its numbers with. Waits for all ranks, and
// connects each with each. Errors are those of JoinC10d().
//
// This is the one place where a backend is chosen: Gloo, for numbers in the memory of CPUs. A build
// with CUDA would make a ProcessGroupNCCL here for those of GPUs.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeBackend(const Collective::Options& options,
                                                              Rendezvous* rendezvous);

// What went wrong, without the stack trace that torch puts behind it.
std::string FirstLine(const std::exception& e);

}  // namespace sluice
