#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rpc/cancel.h"
#include "common/ucx/ucx.h"

namespace sluice {

// Reads objects where they lie in the memory of holders. It is connected to the one that was read
// last. One thread at a time may use it.
class UcxMemory {
 public:
  explicit UcxMemory(std::string devices) : devices_(std::move(devices)) {}

  // Reads up to UcxStage::kMostBytes. The next call overwrites them. Errors are those of
  // UcxReader; triggering `cancel` interrupts it.
  absl::StatusOr<absl::string_view> Read(const UcxPlace& place, absl::Duration deadline,
                                         rpc::Cancel* cancel);

 private:
  const std::string devices_;
  std::unique_ptr<UcxReader> reader_;
  bool is_broken_ = false;  // It has failed, or was interrupted.
};

}  // namespace sluice
