#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Zeroed memory, aligned to 2 MiB and in huge pages if the system has them. It is for numbers that
// each step reads as one stream: with pages of 4 KiB, translating the addresses would cost time.
class HugeBuffer {
 public:
  HugeBuffer() = default;  // Empty.

  // `what` ends the message: what the memory is for, and what to do. RESOURCE_EXHAUSTED: there is
  // not enough memory.
  static absl::StatusOr<HugeBuffer> Create(int64_t bytes, const std::string& what);

  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Unmap {
    int64_t bytes;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Unmap> data_;
  int64_t bytes_ = 0;
};

}  // namespace sluice
