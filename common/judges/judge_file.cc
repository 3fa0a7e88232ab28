#include "common/judges/judge_file.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/loopback.h"
#include "common/base/status.h"
#include "common/config/bind.h"
#include "common/config/problems.h"
#include "common/config/read_file.h"
#include "common/judges/endpoint.h"
#include "sluice/policy/v1/judges.pb.h"

namespace sluice {
namespace {

using config::Binder;
using config::Problems;
using policy::v1::JudgeEndpoint;

constexpr int kBadValue = 10;

absl::StatusOr<JudgeConfig> ConfigOf(const JudgeEndpoint& judge) {
  SLUICE_RETURN_IF_ERROR(CheckUrl(judge.url(), judge.has_key_file()));
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
    SLUICE_ASSIGN_OR_RETURN(config.key, ReadKeyFile(judge.key_file()));
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

absl::Status NoJudge(absl::string_view who, absl::string_view name,
                     const std::vector<std::string>& known, const char* hint) {
  return ErrorWith(absl::StatusCode::kNotFound, {.reason = "NO_JUDGE", .hint = hint},
                   absl::StrCat(who, " has no judge \"", name, "\"; its judges are: ",
                                known.empty() ? "none" : absl::StrJoin(known, ", ")));
}

}  // namespace sluice
