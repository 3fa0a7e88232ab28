#include "common/wal/record.h"

namespace sluice::wal {

absl::StatusOr<Replay::Memory> Replay::Allocate(uint8_t, absl::string_view, uint64_t size) {
  std::shared_ptr<char[]> bytes(new char[size]);
  char* const data = bytes.get();
  return Memory{.owner = std::move(bytes), .data = data};
}

}  // namespace sluice::wal
