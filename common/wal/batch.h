#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/wal/format.h"
#include "common/wal/record.h"

namespace sluice::wal {

// Frames laid one behind the other, ready for one write. Small bytes are gathered; large parts stay
// where they are, so the records added must outlive the batch's last Pieces().
class Batch {
 public:
  // Of the file the frames go to.
  explicit Batch(uint64_t salt) : salt_(salt) {}

  void AddRecord(Position position, Position durable, const Record& record);
  void AddMark(Position position);

  std::vector<absl::string_view> Pieces() const;  // Valid until the next Add.
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  void Clear();

 private:
  void Gather(absl::string_view bytes);
  void AddHeader(FrameHeader header);

  struct Piece {
    const char* data;  // Null: in gathered_, from `offset`.
    size_t offset, size;
  };
  const uint64_t salt_;
  std::string gathered_;
  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
};

// Bytes a record takes in a file.
uint64_t FrameBytes(const Record& record);

}  // namespace sluice::wal
