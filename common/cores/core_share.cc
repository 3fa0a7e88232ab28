#include "common/cores/core_share.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr uint64_t kMagic = 0x3130'6572'6f63'736cull;  // Identifies the format and its version.
constexpr size_t kMaxMembers = 256;
constexpr int kMaxThreads = 4096;

}  // namespace

// The bytes of the file. It is shared by daemons of one machine and one build, and is not kept when
// they end.
struct CorePlanFile {
  struct Slot {
    char name[64];
    int32_t threads;
    int32_t fixed;
    std::atomic<int32_t> busy;  // Parts of the daemon that compute now.
    int32_t unused;
  };
  uint64_t magic;
  int32_t cores;
  int32_t members;
  Slot slots[kMaxMembers];
};

int ThreadsNow(int cores, absl::Span<const CoreUser> users, size_t self) {
  const CoreUser& me = users[self];
  if (me.fixed) return me.threads;

  // `taken` cores are owned by busy members. `borrowers` of them share the rest; `before` of these
  // come earlier in the plan.
  int taken = me.threads, borrowers = 1, before = 0;
  for (size_t i = 0; i < users.size(); ++i) {
    if (i == self || !users[i].busy) continue;
    taken += users[i].threads;
    if (users[i].fixed) continue;
    ++borrowers;
    if (i < self) ++before;
  }

  // The remainder goes to the first borrowers in the plan, one core each.
  const int spare = std::max(0, cores - taken);
  return me.threads + spare / borrowers + (before < spare % borrowers ? 1 : 0);
}

absl::Status WriteCorePlan(const std::string& path, const CorePlan& plan) {
  if (plan.members.size() > kMaxMembers) {
    return absl::InvalidArgumentError(absl::StrCat("the plan of cores has ", plan.members.size(),
                                                   " daemons; the limit is ", kMaxMembers));
  }

  std::string bytes(sizeof(CorePlanFile), '\0');
  auto* const file = reinterpret_cast<CorePlanFile*>(bytes.data());
  file->magic = kMagic;
  file->cores = plan.cores;
  file->members = static_cast<int32_t>(plan.members.size());
  for (size_t i = 0; i < plan.members.size(); ++i) {
    const CorePlan::Member& member = plan.members[i];
    CorePlanFile::Slot& slot = file->slots[i];
    if (member.name.size() >= sizeof slot.name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the daemon's name ", member.name, " is longer than ", sizeof slot.name - 1, " bytes"));
    }
    member.name.copy(slot.name, member.name.size());
    slot.threads = member.threads;
    slot.fixed = member.fixed ? 1 : 0;
  }
  return WriteFileAtomic(path, bytes);
}

CoreShare::CoreShare(int threads)
    : threads_alone_(std::max(1, threads)), file_(nullptr), members_(0), self_(0) {}

CoreShare::CoreShare(CorePlanFile* file, size_t members, size_t self)
    : threads_alone_(0), file_(file), members_(members), self_(self) {}

absl::StatusOr<std::unique_ptr<CoreShare>> CoreShare::Open(const std::string& path,
                                                           const std::string& name) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("open the plan of cores ", path));

  struct stat info{};
  const bool whole = fstat(fd, &info) == 0 && info.st_size == sizeof(CorePlanFile);
  void* const mapped =
      whole ? mmap(nullptr, sizeof(CorePlanFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
            : MAP_FAILED;
  const int map_error = errno;
  // The mapping stays valid without the descriptor.
  close(fd);
  if (!whole) return absl::DataLossError(absl::StrCat(path, " is not a plan of cores"));
  if (mapped == MAP_FAILED)
    return ErrnoStatus(map_error, absl::StrCat("map the plan of cores ", path));

  CorePlanFile* const file = static_cast<CorePlanFile*>(mapped);
  // Read once: whoever writes the file later cannot change a number that has been checked.
  const int32_t members = file->members;
  const bool sound = file->magic == kMagic && file->cores >= 1 && members >= 0 &&
                     members <= static_cast<int32_t>(kMaxMembers);
  for (int32_t i = 0; sound && i < members; ++i) {
    CorePlanFile::Slot& slot = file->slots[i];
    if (strnlen(slot.name, sizeof slot.name) != name.size() ||
        std::memcmp(slot.name, name.data(), name.size()) != 0)
      continue;
    slot.busy = 0;  // A process of this name that died may have left another value.
    return std::unique_ptr<CoreShare>(
        new CoreShare(file, static_cast<size_t>(members), static_cast<size_t>(i)));
  }

  munmap(mapped, sizeof(CorePlanFile));
  if (!sound) return absl::DataLossError(absl::StrCat(path, " is not a plan of cores"));
  return absl::NotFoundError(absl::StrCat("the plan of cores ", path, " has no daemon ", name));
}

CoreShare::~CoreShare() {
  if (file_ != nullptr) munmap(file_, sizeof(CorePlanFile));
}

void CoreShare::Enter() {
  ++busy_parts_;
  if (file_ != nullptr) ++file_->slots[self_].busy;
}

void CoreShare::Leave() {
  const int left = --busy_parts_;
  SLUICE_CHECK(left >= 0);
  if (file_ != nullptr) --file_->slots[self_].busy;
}

int CoreShare::threads() const {
  int threads = threads_alone_;
  if (file_ != nullptr) {
    CoreUser users[kMaxMembers];
    for (size_t i = 0; i < members_; ++i) {
      const CorePlanFile::Slot& slot = file_->slots[i];
      // The file is shared, so its numbers are not trusted.
      users[i] = {std::clamp(slot.threads, 1, kMaxThreads), slot.fixed != 0,
                  slot.busy.load(std::memory_order_relaxed) > 0};
    }
    threads = ThreadsNow(std::min(file_->cores, kMaxThreads), {users, members_}, self_);
  }
  return std::max(1, threads / std::max(1, busy_parts_.load(std::memory_order_relaxed)));
}

}  // namespace sluice
