#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wal/file_system.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// The result of reading a job's log as a restart would read it.
struct FsckJob {
  std::string job;   // 32 hex digits.
  std::string name;  // For people.
  Durability durability = Durability::kMemory;
  // OK: the whole log was read and replayed. DATA_LOSS: it is damaged; the message names segment
  // and offset. FAILED_PRECONDITION: another build wrote it.
  absl::Status status;
  uint64_t snapshot = 0;  // Last position that the snapshot contains; 0 if there is none.
  uint64_t last = 0;      // Position of the last complete record.
  // The segment in which the log ends, and the offset there. Empty if no segment was read.
  std::string end_file;
  uint64_t end_offset = 0;
  uint64_t events = 0;  // Number of events replayed after the snapshot.
  uint64_t bytes = 0;   // Size of the log after the snapshot.
  bool torn = false;    // An incomplete write at the end was left out; it was never acknowledged.
  int64_t version = 0;  // K, the version that the trainer holds.
  uint64_t groups = 0;  // Number of groups in memory.
  uint64_t stored_bytes = 0;  // Size of the stored payload.
  Ledger ledger;
  // Violated invariants of the state and the ledger. Empty if there are none.
  std::vector<std::string> violations;
  std::vector<std::string> remarks;  // Unusual things that do no harm.

  bool ok() const { return status.ok() && violations.empty(); }
};

struct FsckReport {
  std::vector<FsckJob> jobs;  // By id.
  bool ok() const;
};

// Checks the --data-dir of a sluice-queue that is stopped: it reads every record with its CRC,
// replays every event, and checks the invariants of the resulting state. It changes nothing.
// NOT_FOUND: there is no such folder, or it is not that of a queue.
// FAILED_PRECONDITION DATA_DIR_IN_USE: a running queue owns the folder; ask that queue.
absl::StatusOr<FsckReport> FsckDataDir(const std::string& data_dir,
                                       wal::FileSystem* file_system = wal::FileSystem::Real());

}  // namespace sluice::queue
