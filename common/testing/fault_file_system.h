#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/wal/file_system.h"

namespace sluice::wal {

// A file system in memory that simulates faults and crashes. Every call that changes something is
// numbered, from 1; reads are not.
//
// After a crash, a file has the bytes that were synced last, plus any subset of the sectors written
// later; the last write may be cut at any byte (DieAt). A directory has the names that were synced
// last, plus any subset of the later changes, without those that depend on a lost one. A sync that
// fails forgets what it should have synced, as a page cache does: reads still show these bytes, but
// no later sync writes them.
//
// Thread-safe.
class FaultFileSystem : public FileSystem {
 public:
  // `sector_bytes` is the size of the pieces of a write that survive a crash independently.
  explicit FaultFileSystem(size_t sector_bytes = 512) : sector_bytes_(sector_bytes) {}

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> OpenForWrite(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& dir) override;
  absl::Status MakeDirs(const std::string& dir) override { return absl::OkStatus(); }
  absl::Status SyncDir(const std::string& dir) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& dir) override;
  absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& dir) override;

  // Called before each changing call, with its number and name (write, sync, allocate, truncate,
  // create, rename, remove, syncdir). If it returns an error, the call returns this error and
  // changes nothing.
  using Fault =
      std::function<absl::Status(uint64_t call, const std::string& name, const std::string& path)>;
  void SetFault(Fault fault);
  // Number of changing calls so far.
  uint64_t calls() const;

  // Sets the size of the disk in bytes. Allocate, and writes beyond what is allocated, fail with
  // RESOURCE_EXHAUSTED if they do not fit.
  void SetCapacity(uint64_t bytes);

  // Simulates a machine that goes down: from call number `call` on, all changing calls fail with
  // ABORTED. If that call is a write, its first `bytes_written` bytes are done. Reads still work
  // until Crash() or Restart().
  void DieAt(uint64_t call, uint64_t bytes_written = 0);
  // Whether the machine is down.
  bool dead() const;
  // Number of independent pieces that are not synced.
  size_t unsynced() const;
  // The machine crashes and comes up again. Of the pieces that are not synced, those survive for
  // which `keep` returns true; afterwards everything is synced. Reads and changes fail for
  // files that were opened before.
  void Crash(const std::function<bool(size_t piece)>& keep);
  // Only the process dies and restarts. Nothing is lost, and nothing more is synced.
  void Restart();

  // A copy with the same files, names and pieces that are not synced, but without faults and locks.
  std::unique_ptr<FaultFileSystem> Clone() const;

  // Access to whole files by name, while no other call runs.
  std::map<std::string, std::string> Snapshot() const;
  void Put(const std::string& path, std::string bytes);
  void Erase(const std::string& path);

 private:
  struct Write {
    uint64_t offset;
    std::string bytes;
    void ApplyTo(std::string* file) const;
  };
  struct Node {
    std::string now, synced;      // What reads see, and what is on the disk.
    std::vector<Write> unsynced;  // One for each sector, in order.
  };
  struct NameChange {
    std::string from, to;  // `from` is empty for a creation, `to` for a removal.
    std::shared_ptr<Node> node;
  };
  class MemoryFile;
  class MemoryLock;

  absl::Status BeginCall(const char* name, const std::string& path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes bytes that reads see at once and a crash may lose.
  void WriteBytes(Node* node, uint64_t offset, absl::string_view bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // RESOURCE_EXHAUSTED: the disk cannot hold the files if `node` grows to `size` bytes.
  absl::Status CheckCapacity(const Node& node, uint64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t sector_bytes_;
  mutable Mutex mu_;
  // names_ are the names that callers see, and synced_names_ those on the disk. changes_ leads from
  // the second to the first.
  std::map<std::string, std::shared_ptr<Node>> names_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Node>> synced_names_ ABSL_GUARDED_BY(mu_);
  std::vector<NameChange> changes_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> locks_ ABSL_GUARDED_BY(mu_);
  Fault fault_ ABSL_GUARDED_BY(mu_);
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t die_at_ ABSL_GUARDED_BY(mu_) = ~uint64_t{0};
  uint64_t die_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Rises at each crash and restart. Reads and changes fail for files of an earlier life.
  uint64_t life_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t capacity_ ABSL_GUARDED_BY(mu_) = ~uint64_t{0} >> 1;
};

}  // namespace sluice::wal
