// Checks of the data directory: its disk, its lock, and the controller's store in it.

#include <fcntl.h>
#include <linux/magic.h>
#include <sqlite3.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/meta/redis.h"
#include "tools/sluice/doctor/checks.h"
#include "tools/sluice/progress.h"

namespace sluice::cli {
namespace {

constexpr char kNoDataDir[] = "give --data-dir DIR";

// The folder itself, or the nearest one above it that exists: the daemons make the rest.
std::string ExistingFolder(const std::string& path) {
  std::filesystem::path folder = std::filesystem::absolute(path).lexically_normal();
  std::error_code error;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder.string();
}

Finding CheckWritable(const DoctorInputs& in) {
  if (in.data_dir.empty()) return Skip(kNoDataDir);
  const std::string dir = ExistingFolder(in.data_dir);
  const std::string path = absl::StrCat(dir, "/doctor-", ToHex(RandomId16()));

  // Writes, syncs and renames, as the daemons do.
  const absl::Status status = WriteFileAtomic(path, "sluice doctor");
  unlink(path.c_str());
  if (status.ok()) return Pass(absl::StrCat(dir, " can be written, synced and renamed in"));
  return Fail(std::string(status.message()),
              absl::StrCat("give the daemons' user the right to write ", dir,
                           ", or name another --data-dir"));
}

Finding CheckSpace(const DoctorInputs& in) {
  constexpr uint64_t kLeast = 256 << 20, kUsual = uint64_t{4} << 30;
  if (in.data_dir.empty()) return Skip(kNoDataDir);
  const std::string dir = ExistingFolder(in.data_dir);
  struct statfs stat{};
  if (statfs(dir.c_str(), &stat) != 0)
    return Fail(absl::StrCat(dir, ": ", std::strerror(errno)), "name another --data-dir");

  const auto block = static_cast<uint64_t>(stat.f_bsize);
  const uint64_t free = stat.f_bavail * block, size = stat.f_blocks * block;
  const std::string found =
      absl::StrCat("the disk of ", dir, " has ", ShortBytes(free), " free of ", ShortBytes(size));
  const std::string fix = absl::StrCat(
      "remove files from it, or name a --data-dir on another disk; "
      "`du -xh --max-depth 2 ",
      dir, " | sort -h` shows what is large");
  if (free < kLeast)
    return Fail(absl::StrCat(found, "; below ", ShortBytes(kLeast), " the queue takes no new work"),
                fix);
  if (free < kUsual)
    return Warn(absl::StrCat(found, "; a log and two checkpoints may not fit"), fix);
  return Pass(found);
}

Finding CheckKind(const DoctorInputs& in) {
  if (in.data_dir.empty()) return Skip(kNoDataDir);
  const std::string dir = ExistingFolder(in.data_dir);
  struct statfs stat{};
  if (statfs(dir.c_str(), &stat) != 0)
    return Fail(absl::StrCat(dir, ": ", std::strerror(errno)), "name another --data-dir");

  const std::string fix = "name a --data-dir on a local disk, or on a volume of the pod";
  switch (static_cast<uint32_t>(stat.f_type)) {
    case TMPFS_MAGIC:
      return Fail(absl::StrCat(dir, " is on tmpfs: a restart of the host loses all of it"), fix);
    case OVERLAYFS_SUPER_MAGIC:
      return Warn(absl::StrCat(dir, " is on overlayfs: it is lost with the container"), fix);
    case NFS_SUPER_MAGIC:
      return Warn(absl::StrCat(dir, " is on NFS, whose locks and syncs depend on the server"), fix);
    default: return Pass(absl::StrFormat("%s is on a file system of type 0x%x", dir, stat.f_type));
  }
}

// The queue syncs its log before it answers, so this time is part of each answer.
Finding CheckSync(const DoctorInputs& in) {
  constexpr int kMost = 64;
  constexpr absl::Duration kBudget = absl::Seconds(2), kSlow = absl::Milliseconds(50);
  if (in.data_dir.empty()) return Skip(kNoDataDir);
  const std::string dir = ExistingFolder(in.data_dir);
  const std::string path = absl::StrCat(dir, "/doctor-", ToHex(RandomId16()));
  const Fd file(open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!file.valid()) return Skip(absl::StrCat(dir, " cannot be written: see disk.writable"));
  unlink(path.c_str());

  const std::string block(4096, 'x');
  std::vector<absl::Duration> times;
  const absl::Duration start = in.monotonic();
  while (times.size() < kMost && in.monotonic() - start < kBudget) {
    const absl::Duration before = in.monotonic();
    if (write(file.get(), block.data(), block.size()) < 0 || fdatasync(file.get()) != 0)
      return Fail(absl::StrCat("fdatasync in ", dir, ": ", std::strerror(errno)),
                  "look into the kernel's log (dmesg) for errors of that disk");
    times.push_back(in.monotonic() - before);
  }

  std::sort(times.begin(), times.end());
  const absl::Duration p99 = times[(times.size() - 1) * 99 / 100];
  const std::string found =
      absl::StrFormat("fdatasync of 4 KiB in %s: p50 %.2f ms, p99 %.2f ms, %d tries", dir,
                      absl::ToDoubleMilliseconds(times[times.size() / 2]),
                      absl::ToDoubleMilliseconds(p99), static_cast<int>(times.size()));
  if (p99 <= kSlow) return Pass(found);
  return Warn(absl::StrCat(found, ", but rollouts wait for each of them"),
              "use a faster disk for queues, or `queue.keep.durability: metadata`");
}

Finding CheckLock(const DoctorInputs& in) {
  if (in.data_dir.empty()) return Skip(kNoDataDir);
  const absl::StatusOr<DirLock> lock = DirLock::AcquireShared(in.data_dir);
  if (lock.ok()) return Pass(absl::StrCat(in.data_dir, " is used by no process"));
  if (absl::IsNotFound(lock.status()))
    return Pass(absl::StrCat(in.data_dir, " has not been used by a daemon yet"));
  if (in.local) return Pass(absl::StrCat("the fleet of `dev up` runs on ", in.data_dir));
  return Fail(std::string(lock.status().message()), DetailOf(lock.status()).hint);
}

// The path of the controller's store below the data directory of a controller or of a fleet.
std::string FindStore(const std::string& data_dir) {
  for (const char* below : {"/meta.db", "/controller-0/meta.db"}) {
    if (PathExists(data_dir + below)) return data_dir + below;
  }
  return "";
}

Finding CheckStore(const DoctorInputs& in) {
  if (in.data_dir.empty()) return Skip(kNoDataDir);
  const std::string path = FindStore(in.data_dir);
  if (path.empty()) return Skip(absl::StrCat("no controller has a store in ", in.data_dir));
  const std::string fix = absl::StrCat("stop the controller, keep a copy of ", path,
                                       ", and put a backup in its place; `sluice explain "
                                       "SLUICE-META-0003` says more");

  sqlite3* opened = nullptr;
  const int error = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr);
  const std::unique_ptr<sqlite3, decltype(&sqlite3_close)> store(opened, sqlite3_close);
  if (error != SQLITE_OK) return Fail(absl::StrCat(path, ": ", sqlite3_errmsg(store.get())), fix);
  sqlite3_busy_timeout(store.get(), 1000);
  std::string answer;
  const auto take = [](void* out, int, char** columns, char**) {
    std::string& text = *static_cast<std::string*>(out);
    if (text.empty() && columns[0] != nullptr) text = columns[0];
    return 0;
  };
  char* message = nullptr;
  sqlite3_exec(store.get(), "PRAGMA quick_check(1)", take, &answer, &message);
  if (message != nullptr) answer = message;
  sqlite3_free(message);
  if (answer == "ok") return Pass(absl::StrCat(path, " is undamaged"));
  return Fail(absl::StrCat(path, " is damaged: ", answer), fix);
}

Finding CheckRedisStore(const DoctorInputs& in) {
  if (in.store.empty()) return Skip("give --store as the controllers have it");
  const absl::StatusOr<std::string> found = meta::DescribeRedis(
      {.url = in.store, .password_file = in.store_password_file, .ca_file = in.store_ca});
  if (found.ok()) return Pass(*found);
  const std::string& hint = DetailOf(found.status()).hint;
  return Fail(std::string(found.status().message()),
              hint.empty() ? "see that the Redis runs, and that --store names it" : hint);
}

}  // namespace

std::vector<DoctorCheck> DiskChecks() {
  return {
      {"disk", "writable", "the data directory can be written", CheckWritable},
      {"disk", "space", "its disk has space", CheckSpace},
      {"disk", "kind", "its disk keeps what is written", CheckKind},
      {"disk", "sync", "its disk syncs fast", CheckSync},
      {"disk", "lock", "no foreign process uses the data directory", CheckLock},
      {"store", "file", "the controller's store in it is undamaged", CheckStore},
      {"store", "redis", "the Redis of the controllers keeps what it is told", CheckRedisStore}};
}

}  // namespace sluice::cli
