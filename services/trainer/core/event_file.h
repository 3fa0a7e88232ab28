#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/trainer/core/metrics_log.h"

namespace sluice::trainer {

// The name under which TensorBoard shows a value. TensorBoard draws values with the same words
// before the first slash in one section. So a name with a slash stays as it is, seconds_X becomes
// seconds/X, staleness_X becomes staleness/X, and any other NAME becomes train/NAME.
std::string TensorBoardTag(absl::string_view name);

// The file DIR/events.out.tfevents.INCARNATION.sluice, in which TensorBoard finds the values of the
// steps that one incarnation of the trainer has done. INCARNATION is padded with zeros, because
// TensorBoard reads the files of a folder in the order of their names. The first record says with
// which step this file begins; TensorBoard then hides the points of that step and later ones in the
// files before it, which are not part of the run any more.
//
// The format is a sequence of records {length u64, masked CRC-32C of the length, bytes, masked
// CRC-32C of the bytes}, all little-endian (tensorflow/core/lib/io/record_writer.h). The bytes are
// Event messages (tensorflow/core/util/event.proto). They are encoded by hand, because only four
// kinds of field are needed.
//
// Not thread-safe.
class EventFile {
 public:
  // Does not touch the disk yet.
  EventFile(std::string dir, int64_t incarnation);

  // Adds the values of one step as 32-bit floats. After an error the file lacks this step.
  // RESOURCE_EXHAUSTED: the disk is full.
  absl::Status Append(const StepRecord& record);

  const std::string& path() const { return path_; }

 private:
  const std::string dir_;
  const std::string path_;
  int64_t size_ = 0;  // Bytes of complete records; Append() cuts off what follows them.
};

}  // namespace sluice::trainer
