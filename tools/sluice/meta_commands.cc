// Commands that copy the controller's job store, and fill one from a copy.

#include <cstdio>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/meta/backup.h"
#include "common/rpc/stream.h"
#include "sluice/admin/v1/admin.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/options.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kMaxBackup = uint64_t{64} << 30;

struct MetaOptions {
  std::string server, file, data_dir, store, password_file, ca_file;
  bool yes = false;
};

absl::Status PieceError(uint64_t offset) {
  return ErrorWith(absl::StatusCode::kDataLoss, {.reason = "BAD_CRC", .hint = "try it again"},
                   absl::StrCat("the copy was damaged on its way, at byte ", offset));
}

// Reads the copy that the controller sends.
absl::StatusOr<std::string> FetchBackup(const rpc::Channel& channel) {
  rpc::ClientStream stream(channel, *admin::v1::BackupRequest::descriptor());
  stream.Write(admin::v1::BackupRequest());
  stream.WritesDone();
  std::string copy;
  bool end = false;
  admin::v1::BackupResponse piece;
  while (stream.Read(&piece)) {
    if (piece.offset() != copy.size() || piece.crc32c() != Crc32c(piece.data())) {
      stream.TryCancel();
      return PieceError(copy.size());
    }
    copy += piece.data();
    end = piece.end();
  }
  SLUICE_RETURN_IF_ERROR(stream.Finish());
  if (!end) return PieceError(copy.size());
  return copy;
}

int CountJobs(const std::vector<meta::Entry>& entries) {
  std::set<std::string> ids;
  for (const meta::Entry& entry : entries) {
    const std::vector<std::string> parts = absl::StrSplit(entry.key, '/');
    if (parts.size() > 1 && parts[0] == "jobs") ids.insert(parts[1]);
  }
  return static_cast<int>(ids.size());
}

absl::Status Backup(const MetaOptions& o) {
  // Else an error would come only after the whole copy.
  if (PathExists(o.file)) {
    return ErrorWith(absl::StatusCode::kAlreadyExists, {.hint = "name another file"},
                     absl::StrCat(o.file, " exists already"));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel,
                          ConnectToController(o.server));
  // The leader may have changed since the last command; the second try goes to the new one.
  absl::StatusOr<std::string> copy = FetchBackup(*channel);
  if (absl::IsUnavailable(copy.status())) copy = FetchBackup(*channel);
  SLUICE_RETURN_IF_ERROR(copy.status());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<meta::Entry> entries, meta::DecodeBackup(*copy));
  // It has the specs of all submitters.
  SLUICE_RETURN_IF_ERROR(WriteSecretAtomic(o.file, *copy));
  std::printf("%s\n", o.file.c_str());
  std::fprintf(stderr, "%d jobs, %zu entries, %zu bytes\n", CountJobs(entries), entries.size(),
               copy->size());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<meta::Store>> OpenStore(const MetaOptions& o) {
  if (o.data_dir.empty()) {
    return meta::Open({.url = o.store,
                       .password_file = o.password_file,
                       .ca_file = o.ca_file,
                       .holder = "sluice meta restore"});
  }
  return meta::Open({.url = absl::StrCat("sqlite:", o.data_dir, "/meta.db")});
}

absl::Status Restore(const MetaOptions& o) {
  if (o.data_dir.empty() == o.store.empty()) {
    return ErrorWith(absl::StatusCode::kInvalidArgument,
                     {.hint = "give --data-dir DIR of a controller, or --store with its Redis"},
                     "the job store to restore is named by exactly one of --data-dir and --store");
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(o.file, kMaxBackup));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<meta::Entry> entries, meta::DecodeBackup(bytes));

  std::optional<DirLock> lock;
  if (!o.data_dir.empty()) {
    SLUICE_RETURN_IF_ERROR(MakeDirs(o.data_dir));
    SLUICE_ASSIGN_OR_RETURN(DirLock taken, DirLock::Acquire(o.data_dir));
    lock.emplace(std::move(taken));
  }
  const absl::StatusOr<std::unique_ptr<meta::Store>> store = OpenStore(o);
  if (ReasonOf(store.status()) == "HELD") {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "HELD", .hint = "stop all its controllers first"},
                     store.status().message());
  }
  SLUICE_RETURN_IF_ERROR(store.status());
  SLUICE_RETURN_IF_ERROR(meta::RestoreBackup(**store, entries, o.yes));
  std::fprintf(stderr, "restored %d jobs, %zu entries\n", CountJobs(entries), entries.size());
  return absl::OkStatus();
}

// Makes a command that runs `run`.
Command MetaCommand(const char* name, const char* summary, const char* example,
                    std::function<void(CLI::App*, MetaOptions*)> extra,
                    absl::Status (*run)(const MetaOptions&)) {
  return {"meta", name, summary, example, [extra, run](CLI::App* app) {
            auto o = std::make_shared<MetaOptions>();
            extra(app, o.get());
            return [o, run] {
              const absl::Status status = run(*o);
              return status.ok() ? kDone : Complain(status);
            };
          }};
}

}  // namespace

std::vector<Command> MetaCommands() {
  return {
      MetaCommand(
          "backup", "Copy the job store of the running controller into a file.",
          "  sluice meta backup -o jobs.backup",
          [](CLI::App* app, MetaOptions* o) {
            AddServer(app, &o->server);
            app->add_option("-o,--out", o->file, "the file, which only you may then read")
                ->required();
          },
          &Backup),
      MetaCommand(
          "restore",
          "Fill the job store of a controller that is not running from a file of `meta backup`.",
          "  sluice meta restore jobs.backup --data-dir controller-0\n  sluice meta restore "
          "jobs.backup --store rediss://redis:6379 --store-ca ca.crt --store-password-file "
          "password",
          [](CLI::App* app, MetaOptions* o) {
            app->add_option("FILE", o->file, "the backup")->required();
            app->add_option("--data-dir", o->data_dir,
                            "the --data-dir of a controller that keeps its jobs there");
            app->add_option("--store", o->store, "the --store of controllers with a Redis");
            app->add_option("--store-password-file", o->password_file,
                            "file with the password of that Redis; default: the environment "
                            "variable SLUICE_STORE_PASSWORD");
            app->add_option("--store-ca", o->ca_file,
                            "PEM file with the authorities of that Redis; default: those of the "
                            "system");
            app->add_flag("--yes", o->yes, "replace what is in the store");
          },
          &Restore)};
}

}  // namespace sluice::cli
