#include "services/rollout/http/keys.h"

#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/secret.h"
#include "common/base/status.h"

namespace sluice::rollout::http {
namespace {
constexpr uint64_t kMaxFile = 1 << 20;
constexpr absl::string_view kScheme = "Bearer ";
}  // namespace

absl::StatusOr<Keys> Keys::Load(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxFile));
  const Secret secret(std::move(text));
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  // A group may read it, because Kubernetes mounts Secrets with the group of the pod.
  if ((info.st_mode & S_IRWXO) != 0) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.hint = absl::StrCat("chmod 600 ", path)},
                     absl::StrCat(path, ": every user of the host may read these keys"));
  }
  return Parse(secret.Reveal(), path);
}

absl::StatusOr<Keys> Keys::Parse(absl::string_view text, absl::string_view source) {
  Keys keys;
  std::map<std::string, std::shared_ptr<Tenant>> tenants;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(source, ":", number, ": ", what));
    };
    if (parts.size() < 2 || parts.size() > 3)
      return wrong(absl::StrCat(parts.size(), " words; wanted: NAME KEY [MOST_ANSWERS]"));
    if (parts[1].size() < kShortest)
      return wrong(
          absl::StrCat("a key of ", parts[1].size(), " bytes; wanted: at least ", kShortest));

    std::shared_ptr<Tenant>& tenant = tenants[std::string(parts[0])];
    if (tenant == nullptr) tenant = std::make_shared<Tenant>(Tenant{.name = std::string(parts[0])});
    if (parts.size() == 3 &&
        (!absl::SimpleAtoi(parts[2], &tenant->most_answers) || tenant->most_answers == 0)) {
      return wrong(absl::StrCat("\"", parts[2], "\" answers at once; wanted: a number above 0"));
    }
    if (!keys.by_digest_.emplace(Sha256(parts[1]), tenant).second)
      return wrong("this key is listed twice");
  }
  if (keys.by_digest_.empty())
    return absl::FailedPreconditionError(
        absl::StrCat(source, ": the file has no key; wanted: lines of NAME KEY [MOST_ANSWERS]"));
  return keys;
}

std::shared_ptr<const Tenant> Keys::Find(absl::string_view authorization) const {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return nullptr;
  // Look up by digest, so that the time of the look-up says nothing about a key.
  const auto found =
      by_digest_.find(Sha256(absl::StripAsciiWhitespace(authorization.substr(kScheme.size()))));
  return found == by_digest_.end() ? nullptr : found->second;
}

}  // namespace sluice::rollout::http
