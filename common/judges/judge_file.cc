#include "common/judges/judge_file.h"

#include <sys/stat.h>

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/loopback.h"
#include "common/base/status.h"
#include "common/config/bind.h"
#include "common/config/problems.h"
#include "common/config/read_file.h"
#include "sluice/policy/v1/judges.pb.h"

namespace sluice {
namespace {

using config::Binder;
using config::Problems;
using policy::v1::JudgeEndpoint;

constexpr int kBadValue = 10;
constexpr size_t kMaxKeyBytes = 64 << 10;

// The host of an URL, without user, port and path. Empty: it has none.
absl::string_view HostOf(absl::string_view url) {
  const size_t begin = url.find("://");
  if (begin == absl::string_view::npos) return "";
  absl::string_view host = url.substr(begin + 3);
  host = host.substr(0, host.find_first_of("/?#"));
  if (absl::StartsWith(host, "[")) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

absl::Status CheckUrl(const JudgeEndpoint& judge) {
  const std::string& url = judge.url();
  const bool secure = absl::StartsWith(url, "https://");
  const absl::string_view host = HostOf(url);
  if ((!secure && !absl::StartsWith(url, "http://")) || host.empty() ||
      absl::StrContains(url, '@') || url.find_first_of(" \t\r\n?#") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("url is \"", url,
                     "\", but must be like https://judge.example.com/v1, without a user, a query "
                     "or a fragment"));
  }
  if (!secure && judge.has_key_file() && !IsLoopback(host)) {
    return absl::InvalidArgumentError(absl::StrCat("url is ", url,
                                                   ", which would send the key of key_file to ",
                                                   host, " in clear; use https://"));
  }
  return absl::OkStatus();
}

// A group may read it, because Kubernetes mounts Secrets with the group of the pod.
absl::StatusOr<Secret> ReadKey(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
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

absl::StatusOr<JudgeConfig> ConfigOf(const JudgeEndpoint& judge) {
  SLUICE_RETURN_IF_ERROR(CheckUrl(judge));
  JudgeConfig config{.name = judge.name(),
                     .url = absl::StrCat(absl::StripSuffix(judge.url(), "/"), "/chat/completions"),
                     .loopback = IsLoopback(HostOf(judge.url())),
                     .model = judge.model(),
                     .key = {},
                     .ca_file = judge.ca_file(),
                     .max_in_flight = judge.max_in_flight(),
                     .temperature = judge.temperature(),
                     .max_reply = judge.max_reply(),
                     .reply_limit_field = judge.reply_limit_field()};
  if (judge.has_key_file()) {
    SLUICE_ASSIGN_OR_RETURN(config.key, ReadKey(judge.key_file()));
  }
  if (judge.has_calls_per_minute()) config.calls_per_minute = judge.calls_per_minute();
  if (judge.has_tokens()) config.tokens = judge.tokens();
  return config;
}

}  // namespace

absl::StatusOr<std::vector<JudgeConfig>> ReadJudges(const std::string& path) {
  policy::v1::Judges file;
  std::vector<JudgeConfig> judges;
  SLUICE_RETURN_IF_ERROR(config::ReadOperatorFile(
      path, "judges file", &file, [&](const Binder& binder, Problems* problems) {
        std::set<std::string> named;
        for (int i = 0; i < file.judges_size(); ++i) {
          const std::string row = absl::StrCat("judges.", i);
          const JudgeEndpoint& judge = file.judges(i);
          absl::StatusOr<JudgeConfig> config = ConfigOf(judge);
          if (config.ok() && !named.insert(judge.name()).second)
            config = absl::InvalidArgumentError(
                absl::StrCat("the name \"", judge.name(), "\" is used twice"));
          if (config.ok()) judges.push_back(*std::move(config));
          else
            problems->Add(binder.PlaceOf(row), kBadValue,
                          absl::StrCat(row, ": ", config.status().message()));
        }
      }));
  return judges;
}

}  // namespace sluice
