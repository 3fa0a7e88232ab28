#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/wal/format.h"
#include "common/wal/record.h"

namespace sluice::wal {

// A sequence of frames, ready for one vectored write. Small pieces are copied into one buffer.
// Large payload parts are not copied, so the added records must stay alive until the last use of
// Pieces().
//
// Not thread-safe.
class Batch {
 public:
  // `salt`: of the file that the frames will be written to.
  explicit Batch(uint64_t salt) : salt_(salt) {}

  void AddRecord(Position position, Position durable, const Record& record);
  void AddMark(Position position);

  std::vector<absl::string_view> Pieces() const;  // Valid until the next call of Add or Clear.
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  void Clear();

 private:
  void AppendCopy(absl::string_view bytes);
  void AddHeader(FrameHeader header);

  struct Piece {
    const char* data;  // Null: the piece is copies_[offset, offset + size).
    size_t offset, size;
  };
  const uint64_t salt_;
  std::string copies_;
  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
};

// Returns the size of a record's frame in a file, with header and padding.
uint64_t FrameBytes(const Record& record);

}  // namespace sluice::wal
