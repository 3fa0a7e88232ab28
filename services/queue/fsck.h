#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wal/file_system.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// What a job's log says when it is read as a restart would read it.
struct FsckJob {
  std::string job;   // 32 hex digits.
  std::string name;  // For people.
  Durability durability = Durability::kMemory;
  // OK: all of it was read and replayed. DATA_LOSS names segment and offset; FAILED_PRECONDITION:
  // written by another build.
  absl::Status status;
  uint64_t snapshot = 0;  // Position that the snapshot stands for; 0: none.
  uint64_t last = 0;      // Position of the last whole record.
  std::string end_file;   // The segment it ends in, and where; empty: no segment was read.
  uint64_t end_offset = 0;
  uint64_t events = 0;        // Replayed behind the snapshot.
  uint64_t bytes = 0;         // Of the log behind it.
  bool torn = false;          // The end of a write that nobody was promised was left out.
  int64_t version = 0;        // K
  uint64_t groups = 0;        // Resident.
  uint64_t stored_bytes = 0;  // Payload.
  Ledger ledger;
  // Broken rules of the state, ledger included; empty: all is well.
  std::vector<std::string> violations;
  std::vector<std::string> remarks;  // Harmless oddities.

  bool ok() const { return status.ok() && violations.empty(); }
};

struct FsckReport {
  std::vector<FsckJob> jobs;  // By id.
  bool ok() const;
};

// Reads the --data-dir of a sluice-queue that does not run: every CRC, every event replayed, the
// state that comes out checked. Changes nothing. NOT_FOUND: no such folder, or none of a queue.
// FAILED_PRECONDITION (DATA_DIR_IN_USE): a queue owns it; ask that one.
absl::StatusOr<FsckReport> FsckDataDir(const std::string& data_dir,
                                       wal::FileSystem* file_system = wal::FileSystem::Real());

}  // namespace sluice::queue
