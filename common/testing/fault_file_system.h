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

// Files in memory, with what goes wrong on real ones. Every call that changes something is numbered
// from 1; reads are not.
//
// What a crash leaves: of each file the bytes synced last, plus any choice of the sectors of later
// writes, cut anywhere; of the directory the names synced last, plus any choice of later changes
// (without those that build on a lost one). A sync that fails forgets what it was to sync, as page
// caches do: reads still show it, and no later sync writes it.
//
// Thread-safe.
class FaultFileSystem : public FileSystem {
 public:
  // How much of each write survives a crash on its own.
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

  // Asked before each changing call with its number and name (write, sync, allocate, truncate,
  // create, rename, remove, syncdir); what it returns, if not OK, the call returns, and changes
  // nothing.
  using Fault =
      std::function<absl::Status(uint64_t call, const std::string& name, const std::string& path)>;
  void SetFault(Fault fault);
  uint64_t calls() const;

  // Bytes of disk. Allocate and writes beyond what is allocated fail with RESOURCE_EXHAUSTED when
  // they do not fit.
  void SetCapacity(uint64_t bytes);

  // From call number `call` on all calls fail with ABORTED: the machine is down. A write that is
  // that call is done in part.
  void DieAt(uint64_t call, uint64_t bytes_written = 0);
  bool dead() const;
  // Number of independent pieces that are not synced.
  size_t unsynced() const;
  // The machine comes up again with the pieces for which `keep` says so; all is synced then. Open
  // files of before are dead.
  void Crash(const std::function<bool(size_t piece)>& keep);
  // The process alone dies: nothing is lost, nothing more is synced.
  void Restart();

  // The same files, names and unsynced pieces once more; no faults, no locks.
  std::unique_ptr<FaultFileSystem> Clone() const;

  // At rest: whole files by name.
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
    std::string now, synced;
    std::vector<Write> unsynced;  // Sector by sector, in order.
  };
  struct NameChange {
    std::string from, to;  // Create: from empty. Remove: to empty.
    std::shared_ptr<Node> node;
  };
  class MemoryFile;
  class MemoryLock;

  absl::Status Begin(const char* name, const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Change(Node* node, uint64_t offset, absl::string_view bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Reserve(const Node& node, uint64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t sector_bytes_;
  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<Node>> names_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Node>> synced_names_ ABSL_GUARDED_BY(mu_);
  std::vector<NameChange> changes_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> locks_ ABSL_GUARDED_BY(mu_);
  Fault fault_ ABSL_GUARDED_BY(mu_);
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t die_at_ ABSL_GUARDED_BY(mu_) = ~uint64_t{0};
  uint64_t die_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Rises at each crash and restart: older files are dead.
  uint64_t life_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t capacity_ ABSL_GUARDED_BY(mu_) = ~uint64_t{0} >> 1;
};

}  // namespace sluice::wal
