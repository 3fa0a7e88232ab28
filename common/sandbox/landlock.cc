#include "common/sandbox/landlock.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::sandbox {
namespace {

// As landlock_ruleset_attr of Linux 6.12, which the headers of Debian 12 lack in part.
struct RulesetAttributes {
  uint64_t files = 0;
  uint64_t network = 0;  // Version 4.
  uint64_t scoped = 0;   // Version 6.
};
constexpr uint64_t kAbstractSockets = 1, kSignals = 2;  // Bits of `scoped`.
constexpr uint64_t kTruncate = 1ull << 14;              // Version 3.
constexpr uint64_t kDeviceIoctl = 1ull << 15;           // Version 5.

constexpr uint64_t kReadFile = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE;
constexpr uint64_t kRead = kReadFile | LANDLOCK_ACCESS_FS_READ_DIR;
// What only files have; other rights are those of folders.
constexpr uint64_t kOfFiles = kReadFile | LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate | kDeviceIoctl;

// All rights to files that this version of Landlock knows.
uint64_t AllRights(int version) {
  uint64_t rights = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
  if (version >= 2) rights |= LANDLOCK_ACCESS_FS_REFER;
  if (version >= 3) rights |= kTruncate;
  if (version >= 5) rights |= kDeviceIoctl;
  return rights;
}

absl::Status Allow(const Fd& ruleset, int place, uint64_t rights) {
  struct stat info = {};
  if (fstat(place, &info) != 0) return ErrnoStatus(errno, "what a sandbox shows");
  if (!S_ISDIR(info.st_mode)) rights &= kOfFiles;
  const landlock_path_beneath_attr rule{.allowed_access = rights, .parent_fd = place};
  if (syscall(SYS_landlock_add_rule, ruleset.get(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0)
    return ErrnoStatus(errno, "a Landlock rule");
  return absl::OkStatus();
}

absl::Status AllowPath(const Fd& ruleset, const std::string& path, uint64_t rights) {
  const Fd place(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!place.valid()) return ErrnoStatus(errno, path);
  return Annotate(Allow(ruleset, place.get(), rights), path);
}

}  // namespace

absl::StatusOr<Fd> MakeLandlockRuleset(const std::vector<int>& readable, const std::string& box) {
  const int version = static_cast<int>(
      syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION));
  if (version < 1)
    return absl::FailedPreconditionError("the kernel has no Landlock, or it is switched off");

  const uint64_t all = AllRights(version);
  RulesetAttributes attributes{.files = all};
  if (version >= 6) attributes.scoped = kAbstractSockets | kSignals;
  const size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  Fd ruleset(static_cast<int>(syscall(SYS_landlock_create_ruleset, &attributes, size, 0)));
  if (!ruleset.valid()) return ErrnoStatus(errno, "a Landlock ruleset");

  SLUICE_RETURN_IF_ERROR(AllowPath(ruleset, "/usr", kRead));
  for (const int place : readable) SLUICE_RETURN_IF_ERROR(Allow(ruleset, place, kRead));
  for (const char* device : {"/dev/zero", "/dev/random", "/dev/urandom"})
    SLUICE_RETURN_IF_ERROR(AllowPath(ruleset, device, LANDLOCK_ACCESS_FS_READ_FILE));
  SLUICE_RETURN_IF_ERROR(
      AllowPath(ruleset, "/dev/null",
                (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate) & all));
  SLUICE_RETURN_IF_ERROR(AllowPath(ruleset, box, all));
  return ruleset;
}

}  // namespace sluice::sandbox
