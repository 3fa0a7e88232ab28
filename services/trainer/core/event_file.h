#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/trainer/core/metrics_log.h"

namespace sluice::trainer {

// The name that TensorBoard shows a value under. It draws what has the same words before the first
// slash as one section: a name with a slash stays, seconds_X becomes seconds/X, staleness_X
// staleness/X, any other train/NAME.
std::string TensorBoardTag(absl::string_view name);

// Writes the steps of one incarnation of a trainer as a TensorBoard event file
//   DIR/events.out.tfevents.INCARNATION.sluice
// The number is padded with zeros, as TensorBoard reads the files of a folder in the order of their
// names. The first record says which step this file begins with; TensorBoard then hides the points
// of that step and later ones in the files before it, as they are off the lineage.
//
// The format: records of {length u64, masked CRC-32C of the length, bytes, masked CRC-32C of the
// bytes}, all little-endian (tensorflow/core/lib/io/record_writer.h); the bytes are Event messages
// (tensorflow/core/util/event.proto), encoded here by hand: they need four kinds of field.
//
// Not thread-safe.
class EventFile {
 public:
  // Touches nothing yet.
  EventFile(std::string dir, int64_t incarnation);

  // Adds the values of one step, as 32-bit floats. After an error the step is missing in the file.
  // RESOURCE_EXHAUSTED: the disk is full.
  absl::Status Append(const StepRecord& record);

  const std::string& path() const { return path_; }

 private:
  const std::string dir_;
  const std::string path_;
  int64_t size_ = 0;  // Bytes that were written whole; what is behind them is cut off.
};

}  // namespace sluice::trainer
