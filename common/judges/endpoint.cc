#include "common/judges/endpoint.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/loopback.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr size_t kMaxKeyBytes = 64 << 10;

}  // namespace

absl::string_view HostOf(absl::string_view url) {
  const size_t begin = url.find("://");
  if (begin == absl::string_view::npos) return "";
  absl::string_view host = url.substr(begin + 3);
  host = host.substr(0, host.find_first_of("/?#"));
  if (absl::StartsWith(host, "[")) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

absl::Status CheckUrl(const std::string& url, bool has_key) {
  const bool secure = absl::StartsWith(url, "https://");
  const absl::string_view host = HostOf(url);
  if ((!secure && !absl::StartsWith(url, "http://")) || host.empty() ||
      absl::StrContains(url, '@') || url.find_first_of(" \t\r\n?#") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("url is \"", url,
                     "\", but must be like https://judge.example.com/v1, without a user, a query "
                     "or a fragment"));
  }
  if (!secure && has_key && !IsLoopback(host)) {
    return absl::InvalidArgumentError(absl::StrCat("url is ", url,
                                                   ", which would send the key of key_file to ",
                                                   host, " in clear; use https://"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Secret> ReadKeyFile(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  // A group may read it, because Kubernetes mounts Secrets with the group of the pod.
  if ((info.st_mode & S_IRWXO) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("key_file ", path, " can be read by every user of the host; chmod 600 it"));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxKeyBytes));
  std::string key(absl::StripAsciiWhitespace(text));
  // A line break would end the header in which the key is sent.
  for (const char c : key) {
    if (absl::ascii_isgraph(static_cast<unsigned char>(c))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("key_file ", path, " has more than one word; it must hold only the key"));
  }
  if (key.empty()) return absl::InvalidArgumentError(absl::StrCat("key_file ", path, " is empty"));
  return Secret(std::move(key));
}

}  // namespace sluice
