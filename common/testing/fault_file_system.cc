#include "common/testing/fault_file_system.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace sluice::wal {
namespace {
absl::Status DownError() { return absl::AbortedError("the machine is down"); }
}  // namespace

class FaultFileSystem::MemoryFile : public File {
 public:
  MemoryFile(FaultFileSystem* system, std::shared_ptr<Node> node, std::string path, uint64_t life)
      : system_(system), node_(std::move(node)), path_(std::move(path)), life_(life) {}

  absl::Status Write(uint64_t offset, absl::Span<const absl::string_view> pieces) override {
    std::string bytes;
    for (const absl::string_view piece : pieces) bytes.append(piece.data(), piece.size());
    MutexLock lock(&system_->mu_);
    SLUICE_RETURN_IF_ERROR(BeginCall("write"));
    if (system_->calls_ == system_->die_at_) {
      system_->WriteBytes(node_.get(), offset,
                          absl::string_view(bytes).substr(0, system_->die_bytes_));
      return DownError();
    }
    SLUICE_RETURN_IF_ERROR(system_->CheckCapacity(*node_, offset + bytes.size()));
    system_->WriteBytes(node_.get(), offset, bytes);
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    MutexLock lock(&system_->mu_);
    const absl::Status status = BeginCall("sync");
    if (status.ok() && system_->calls_ == system_->die_at_) return DownError();
    if (status.ok()) {
      for (const FaultFileSystem::Write& write : node_->unsynced) write.ApplyTo(&node_->synced);
      node_->synced.resize(node_->now.size());
    }
    // A failed sync marks the pages as clean although they are not on the disk.
    if (!absl::IsAborted(status)) node_->unsynced.clear();
    return status;
  }
  absl::Status Allocate(uint64_t size) override {
    MutexLock lock(&system_->mu_);
    SLUICE_RETURN_IF_ERROR(BeginCall("allocate"));
    if (system_->calls_ == system_->die_at_) return DownError();
    SLUICE_RETURN_IF_ERROR(system_->CheckCapacity(*node_, size));
    // Sizes are on the disk at once. A crash that loses the new size need not be simulated, because
    // a lost write looks the same.
    if (size > node_->now.size()) node_->now.resize(size);
    if (size > node_->synced.size()) node_->synced.resize(size);
    return absl::OkStatus();
  }
  absl::Status Truncate(uint64_t size) override {
    MutexLock lock(&system_->mu_);
    SLUICE_RETURN_IF_ERROR(BeginCall("truncate"));
    if (system_->calls_ == system_->die_at_) return DownError();
    node_->now.resize(size);
    return absl::OkStatus();
  }
  absl::StatusOr<size_t> Read(uint64_t offset, char* to, size_t size) override {
    MutexLock lock(&system_->mu_);
    if (life_ != system_->life_) return DownError();
    const absl::string_view now = node_->now;
    const absl::string_view part = now.substr(std::min<uint64_t>(offset, now.size()), size);
    std::copy(part.begin(), part.end(), to);
    return part.size();
  }
  absl::StatusOr<uint64_t> Size() override {
    MutexLock lock(&system_->mu_);
    return node_->now.size();
  }

 private:
  absl::Status BeginCall(const char* name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(system_->mu_) {
    return life_ != system_->life_ ? DownError() : system_->BeginCall(name, path_);
  }

  FaultFileSystem* const system_;
  const std::shared_ptr<Node> node_;
  const std::string path_;
  const uint64_t life_;
};

class FaultFileSystem::MemoryLock : public FileSystem::Lock {
 public:
  MemoryLock(FaultFileSystem* system, std::string dir, uint64_t life)
      : system_(system), dir_(std::move(dir)), life_(life) {}
  ~MemoryLock() override {
    MutexLock lock(&system_->mu_);
    if (life_ == system_->life_) system_->locks_.erase(dir_);
  }

 private:
  FaultFileSystem* const system_;
  const std::string dir_;
  const uint64_t life_;
};

void FaultFileSystem::Write::ApplyTo(std::string* file) const {
  if (file->size() < offset + bytes.size()) file->resize(offset + bytes.size());
  std::copy(bytes.begin(), bytes.end(), file->begin() + offset);
}

// Numbers a changing call and asks for a fault. It returns OK for the call at which the machine
// goes down; that call itself decides how much of it is done.
absl::Status FaultFileSystem::BeginCall(const char* name, const std::string& path) {
  if (calls_ >= die_at_) return DownError();
  const uint64_t call = ++calls_;
  if (!fault_) return absl::OkStatus();
  const Fault fault = fault_;
  mu_.Unlock();  // A fault may wait, and take locks of its own.
  const absl::Status status = fault(call, name, path);
  mu_.Lock();
  return status;
}

void FaultFileSystem::WriteBytes(Node* node, uint64_t offset, absl::string_view bytes) {
  if (offset + bytes.size() > node->now.size()) node->now.resize(offset + bytes.size());
  std::copy(bytes.begin(), bytes.end(), node->now.begin() + offset);
  // A crash keeps or loses each sector on its own.
  while (!bytes.empty()) {
    const size_t size = std::min<size_t>(bytes.size(), sector_bytes_ - offset % sector_bytes_);
    node->unsynced.push_back({offset, std::string(bytes.substr(0, size))});
    bytes.remove_prefix(size);
    offset += size;
  }
}

absl::Status FaultFileSystem::CheckCapacity(const Node& node, uint64_t size) {
  if (size <= node.now.size()) return absl::OkStatus();
  uint64_t used = size - node.now.size();
  for (const auto& [path, other] : names_) used += other->now.size();
  return used <= capacity_ ? absl::OkStatus()
                           : absl::ResourceExhaustedError("No space left on device");
}

absl::StatusOr<std::unique_ptr<File>> FaultFileSystem::OpenForRead(const std::string& path) {
  MutexLock lock(&mu_);
  const auto it = names_.find(path);
  if (it == names_.end()) return absl::NotFoundError(path);
  return std::make_unique<MemoryFile>(this, it->second, path, life_);
}

absl::StatusOr<std::unique_ptr<File>> FaultFileSystem::OpenForWrite(const std::string& path) {
  MutexLock lock(&mu_);
  if (const auto it = names_.find(path); it != names_.end())
    return std::make_unique<MemoryFile>(this, it->second, path, life_);
  SLUICE_RETURN_IF_ERROR(BeginCall("create", path));
  if (calls_ == die_at_) return DownError();
  const auto node = names_[path] = std::make_shared<Node>();
  changes_.push_back({"", path, node});
  return std::make_unique<MemoryFile>(this, node, path, life_);
}

absl::Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(&mu_);
  SLUICE_RETURN_IF_ERROR(BeginCall("rename", from));
  if (calls_ == die_at_) return DownError();
  const auto it = names_.find(from);
  if (it == names_.end()) return absl::NotFoundError(from);
  changes_.push_back({from, to, it->second});
  names_[to] = it->second;
  names_.erase(from);
  return absl::OkStatus();
}

absl::Status FaultFileSystem::Remove(const std::string& path) {
  MutexLock lock(&mu_);
  if (!names_.contains(path)) return absl::NotFoundError(path);
  SLUICE_RETURN_IF_ERROR(BeginCall("remove", path));
  if (calls_ == die_at_) return DownError();
  changes_.push_back({path, "", nullptr});
  names_.erase(path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(const std::string& dir) {
  MutexLock lock(&mu_);
  std::vector<std::string> names;
  for (const auto& [path, node] : names_) {
    absl::string_view name = path;
    if (absl::ConsumePrefix(&name, absl::StrCat(dir, "/"))) names.emplace_back(name);
  }
  return names;
}

absl::Status FaultFileSystem::SyncDir(const std::string& dir) {
  MutexLock lock(&mu_);
  SLUICE_RETURN_IF_ERROR(BeginCall("syncdir", dir));
  if (calls_ == die_at_) return DownError();
  // All names are synced, whatever their directory.
  synced_names_ = names_;
  changes_.clear();
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FaultFileSystem::FreeBytes(const std::string&) {
  MutexLock lock(&mu_);
  uint64_t used = 0;
  for (const auto& [path, node] : names_) used += node->now.size();
  return capacity_ - std::min(used, capacity_);
}

absl::StatusOr<std::unique_ptr<FileSystem::Lock>> FaultFileSystem::TakeLock(
    const std::string& dir) {
  MutexLock lock(&mu_);
  if (!locks_.insert(dir).second) {
    return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_IN_USE",
                 absl::StrCat("data directory ", dir, " is in use"));
  }
  return std::make_unique<MemoryLock>(this, dir, life_);
}

void FaultFileSystem::SetFault(Fault fault) {
  MutexLock lock(&mu_);
  fault_ = std::move(fault);
}

uint64_t FaultFileSystem::calls() const {
  MutexLock lock(&mu_);
  return calls_;
}

void FaultFileSystem::SetCapacity(uint64_t bytes) {
  MutexLock lock(&mu_);
  capacity_ = bytes;
}

void FaultFileSystem::DieAt(uint64_t call, uint64_t bytes_written) {
  MutexLock lock(&mu_);
  die_at_ = call;
  die_bytes_ = bytes_written;
}

bool FaultFileSystem::dead() const {
  MutexLock lock(&mu_);
  return calls_ >= die_at_;
}

size_t FaultFileSystem::unsynced() const {
  MutexLock lock(&mu_);
  std::set<const Node*> nodes;
  size_t pieces = changes_.size();
  for (const auto* names : {&names_, &synced_names_}) {
    for (const auto& [path, node] : *names) {
      if (nodes.insert(node.get()).second) pieces += node->unsynced.size();
    }
  }
  return pieces;
}

void FaultFileSystem::Crash(const std::function<bool(size_t piece)>& keep) {
  MutexLock lock(&mu_);
  size_t piece = 0;
  // Names whose last change is lost, and with it every change that depends on it.
  std::set<std::string> lost;
  for (const NameChange& change : changes_) {
    const bool sound = !lost.contains(change.from) && !lost.contains(change.to);
    if (!keep(piece++) || !sound) {
      if (!change.from.empty()) lost.insert(change.from);
      if (!change.to.empty()) lost.insert(change.to);
      continue;
    }
    if (!change.from.empty()) synced_names_.erase(change.from);
    if (!change.to.empty()) synced_names_[change.to] = change.node;
  }

  // A file may have several names, before and after the crash, so each is handled once.
  std::set<Node*> nodes;
  for (const auto* names : {&names_, &synced_names_}) {
    for (const auto& [path, node] : *names) {
      if (!nodes.insert(node.get()).second) continue;
      for (const Write& write : node->unsynced) {
        if (keep(piece++)) write.ApplyTo(&node->synced);
      }
      node->now = node->synced;
      node->unsynced.clear();
    }
  }

  names_ = synced_names_;
  changes_.clear();
  locks_.clear();
  die_at_ = ~uint64_t{0};
  ++life_;
}

void FaultFileSystem::Restart() {
  MutexLock lock(&mu_);
  locks_.clear();
  die_at_ = ~uint64_t{0};
  ++life_;
}

std::unique_ptr<FaultFileSystem> FaultFileSystem::Clone() const {
  auto clone = std::make_unique<FaultFileSystem>(sector_bytes_);
  MutexLock lock(&mu_);
  MutexLock clone_lock(&clone->mu_);
  std::map<const Node*, std::shared_ptr<Node>> copies;
  // Names that share a file must share its copy.
  const auto copy = [&copies](const std::shared_ptr<Node>& node) {
    if (node == nullptr) return node;
    std::shared_ptr<Node>& made = copies[node.get()];
    if (made == nullptr) made = std::make_shared<Node>(*node);
    return made;
  };
  for (const auto& [path, node] : names_) clone->names_[path] = copy(node);
  for (const auto& [path, node] : synced_names_) clone->synced_names_[path] = copy(node);
  for (const NameChange& change : changes_)
    clone->changes_.push_back({change.from, change.to, copy(change.node)});
  clone->capacity_ = capacity_;
  return clone;
}

std::map<std::string, std::string> FaultFileSystem::Snapshot() const {
  MutexLock lock(&mu_);
  std::map<std::string, std::string> files;
  for (const auto& [path, node] : names_) files[path] = node->now;
  return files;
}

void FaultFileSystem::Put(const std::string& path, std::string bytes) {
  MutexLock lock(&mu_);
  auto node = std::make_shared<Node>();
  node->now = node->synced = std::move(bytes);
  names_[path] = synced_names_[path] = std::move(node);
}

void FaultFileSystem::Erase(const std::string& path) {
  MutexLock lock(&mu_);
  names_.erase(path);
  synced_names_.erase(path);
}

}  // namespace sluice::wal
