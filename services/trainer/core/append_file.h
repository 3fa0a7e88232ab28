#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::trainer {

// Called with the open file and its size before anything is written. Returns how many bytes of the
// file to keep; AppendToFile() cuts off the rest.
using KeptBytes = std::function<absl::StatusOr<int64_t>(int fd, int64_t size)>;

// Cuts the file at `path` back to the size that `find_kept` returns, then appends `bytes`. Makes
// the file if it is missing. Returns the file's new size.
//
// After an error nothing of `bytes` is left in the file, unless cutting it off fails too; then the
// next call's `find_kept` sees a file that is too long.
// RESOURCE_EXHAUSTED: the disk is full.
//
// Each call opens the file anew, so that it notices if the file was moved away or deleted.
absl::StatusOr<int64_t> AppendToFile(const std::string& path, absl::string_view bytes,
                                     const KeptBytes& find_kept);

}  // namespace sluice::trainer
