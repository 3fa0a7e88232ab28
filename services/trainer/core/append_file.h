#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::trainer {

// Called with the open file and its size before anything is written. Answers how many bytes of it
// stay; the rest is cut off.
using KeptBytes = std::function<absl::StatusOr<int64_t>(int fd, int64_t size)>;

// Cuts the file at `path` back to what `kept` answers, then writes `bytes` behind it. Makes a file
// that is missing. Answers the file's new size.
//
// After an error nothing of `bytes` is left in the file, unless cutting it off fails too: then the
// caller's next `kept` sees a file that is too long. RESOURCE_EXHAUSTED: the disk is full.
//
// The file is opened anew by each call, so that one that was moved away or deleted is noticed.
absl::StatusOr<int64_t> AppendToFile(const std::string& path, absl::string_view bytes,
                                     const KeptBytes& kept);

}  // namespace sluice::trainer
