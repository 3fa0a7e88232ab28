#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/trainer/batch_payload.h"
#include "services/trainer/core/experience.h"

namespace sluice {
class LeaseKeeper;
class QueueClient;
}  // namespace sluice

namespace sluice::trainer {

// Brings batches from the queue ahead of the step that trains them: while batch K is trained, batch
// K + 1 is asked for and read. The batch's lease is kept alive until Applied().
//
// Owns one thread, `batches`. Next() and Applied() come from one thread.
class BatchReader {
 public:
  struct Options {
    int64_t first = 0;      // The first batch to ask for, K.
    int64_t end = -1;       // The batch not to ask for; -1: none.
    bool stream = false;    // Slices as soon as they are there.
    int64_t experts = 0;    // As FetchGroups has it.
    RowEncoder encode_row;  // Set where rows ride in the batches (supervised data).
  };

  struct Slice {
    int64_t k = 0;
    std::vector<Group> groups;
    bool closed = false;  // The batch has no further slice.
    uint32_t crc32c = 0;  // Of the batch; with closed.
    std::string lease;
  };

  // `queue`, whose cancel token ends the reader's calls, and `leases` outlive the reader.
  BatchReader(QueueClient* queue, LeaseKeeper* leases, Options options);
  // Stop().
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  // Waits for the next slice, in order. Errors are the reader's last word: FENCED, RESTORE_FIRST,
  // GONE, CANCELLED, DATA_LOSS.
  absl::StatusOr<Slice> Next();
  // Batch k has been applied: k + 2 may be asked for.
  void Applied(int64_t k);

  // Joins the thread; cancel the queue's calls before. Answers with the leases of batches that were
  // not applied. Idempotent.
  std::vector<std::string> Stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::trainer
