#include "common/pki/tls_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"

namespace sluice::pki {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;
constexpr int kTries = 5;
// A link to the folder with the present three files, as in a Secret that Kubernetes mounts. All
// three are replaced at once when it is, so no reader that compares times sees a new key with an
// old certificate.
constexpr char kCurrentSet[] = "..data";

absl::StatusOr<std::string> ReadOne(const std::string& dir, const char* name) {
  absl::StatusOr<std::string> text = ReadFile(absl::StrCat(dir, "/", name), kMaxFileBytes);
  if (text.status().code() != absl::StatusCode::kNotFound) return text;
  return ErrorWith(absl::StatusCode::kNotFound,
                   {.reason = "NO_CERTIFICATE",
                    .catalogue = "SLUICE-AUTH-0001",
                    .hint = "make the folder with `sluice pki issue`, or mount the Secret there"},
                   absl::StrCat("the TLS folder ", dir, " has no file ", name, "; it needs ",
                                kCertificateFile, ", ", kKeyFile, " and ", kAuthorityFile));
}

// A group may read it, because Kubernetes mounts Secrets with the group of the pod.
absl::Status CheckKeyMode(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if ((info.st_mode & S_IRWXO) == 0) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "KEY_MODE",
       .catalogue = "SLUICE-AUTH-0002",
       .hint = absl::StrCat("chmod 600 ", path)},
      absl::StrFormat("the private key %s has the mode %03o, so every user of the host may read "
                      "it; wanted: 600, or 640 with a group of its own",
                      path, info.st_mode & 0777));
}

// Makes `path` a symbolic link to `target`, in place of what is there.
absl::Status LinkTo(const std::string& target, const std::string& path) {
  const std::string temporary = absl::StrCat(path, ".tmp-", ToHex(RandomId16()).substr(0, 8));
  if (symlink(target.c_str(), temporary.c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat("symlink ", temporary));
  if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  unlink(temporary.c_str());
  return ErrnoStatus(error, absl::StrCat("rename ", temporary, " to ", path));
}

// Where the link `path` points to; empty if it is not a link.
std::string TargetOf(const std::string& path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

absl::StatusOr<TlsFiles> ReadOnce(const std::string& dir, absl::Time now) {
  TlsFiles files;
  SLUICE_ASSIGN_OR_RETURN(files.pair.certificate, ReadOne(dir, kCertificateFile));
  SLUICE_ASSIGN_OR_RETURN(std::string key, ReadOne(dir, kKeyFile));
  files.pair.key = Secret(std::move(key));
  SLUICE_ASSIGN_OR_RETURN(files.authority, ReadOne(dir, kAuthorityFile));
  SLUICE_RETURN_IF_ERROR(CheckKeyMode(absl::StrCat(dir, "/", kKeyFile)));
  SLUICE_RETURN_IF_ERROR(
      Annotate(CheckKeyPair(files.pair, files.authority, now), absl::StrCat("TLS folder ", dir)));
  return files;
}

}  // namespace

absl::StatusOr<TlsFiles> ReadTlsDir(const std::string& dir, absl::Time now) {
  // If the files are replaced while they are read, a key may come with another's certificate, or a
  // file may be gone.
  for (int tries = 1; tries < kTries; ++tries) {
    absl::StatusOr<TlsFiles> files = ReadOnce(dir, now);
    const std::string reason = ReasonOf(files.status());
    if (reason != "KEY_MISMATCH" && reason != "NO_CERTIFICATE") return files;
  }
  return ReadOnce(dir, now);
}

absl::Status WriteTlsDir(const std::string& dir, const TlsFiles& files) {
  const std::string set = absl::StrCat("..", ToHex(RandomId16()).substr(0, 8));
  SLUICE_RETURN_IF_ERROR(MakeDirs(dir));
  SLUICE_RETURN_IF_ERROR(WriteDirAtomic(absl::StrCat(dir, "/", set), [&](const std::string& to) {
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(to, "/", kAuthorityFile), files.authority));
    SLUICE_RETURN_IF_ERROR(
        WriteSecretAtomic(absl::StrCat(to, "/", kKeyFile), files.pair.key.Reveal()));
    return WriteFileAtomic(absl::StrCat(to, "/", kCertificateFile), files.pair.certificate);
  }));

  const std::string current = absl::StrCat(dir, "/", kCurrentSet);
  const std::string former = TargetOf(current);
  SLUICE_RETURN_IF_ERROR(LinkTo(set, current));
  for (const char* name : {kAuthorityFile, kKeyFile, kCertificateFile}) {
    const std::string target = absl::StrCat(kCurrentSet, "/", name);
    const std::string path = absl::StrCat(dir, "/", name);
    if (TargetOf(path) != target) SLUICE_RETURN_IF_ERROR(LinkTo(target, path));
  }
  if (!former.empty()) SLUICE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(dir, "/", former)));
  return SyncDir(dir);
}

}  // namespace sluice::pki
