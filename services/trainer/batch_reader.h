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

// Reads batches from the queue ahead of the step that trains them: while batch K is trained, batch
// K + 1 is asked for and read. The reader keeps a batch's lease alive until OnApplied() is called
// for it.
//
// Owns one thread, `batches`. Next() and OnApplied() must be called from one thread.
class BatchReader {
 public:
  struct Options {
    int64_t first = 0;           // The first batch to ask for, K.
    int64_t end = -1;            // The batch before which to stop; -1: none.
    bool stream = false;         // Ask for slices as soon as there is a group.
    int64_t experts = 0;         // See FetchGroups().
    bool rewards = true;         // Of the kind rl: answers have rewards.
    RowEncoder encode_row;       // Set for kinds sft and dpo, whose rows are part of the batches.
    bool skip_bad_rows = false;  // See EncodeGroups().
  };

  struct Slice {
    int64_t k = 0;
    std::vector<Group> groups;
    bool closed = false;  // This is the batch's last slice.
    uint32_t crc32c = 0;  // CRC32C of the batch; set in the last slice.
    std::string lease;    // Lease of the batch, 16 bytes.
  };

  // `queue` and `leases` outlive the reader. The cancel token of `queue` ends the reader's calls.
  BatchReader(QueueClient* queue, LeaseKeeper* leases, Options options);
  // Calls Stop().
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  // Waits for the next slice, in order. A batch whose lease ends while it is read is acquired
  // again. After an error no more slices come. Errors are those of AcquireBatch (FENCED,
  // RESTORE_FIRST, ..), of FetchGroups() and of Options::encode_row, or CANCELLED.
  absl::StatusOr<Slice> Next();
  // Tells the reader that batch k has been applied, so that it may ask for batch k + 2.
  void OnApplied(int64_t k);

  // Joins the thread. Cancel the queue's calls before. Returns the leases of batches that were read
  // but not applied. Idempotent.
  std::vector<std::string> Stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::trainer
