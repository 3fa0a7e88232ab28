#pragma once

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace sluice {

struct Pipe {
  Fd read, write;
};

// Returns a pipe whose two ends are closed in a program that this process starts with exec().
absl::StatusOr<Pipe> MakePipe();

}  // namespace sluice
