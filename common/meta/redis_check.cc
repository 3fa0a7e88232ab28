#include "common/meta/redis_check.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/redis/sentinel.h"

namespace sluice::meta {
namespace {

struct Setting {
  const char* name;
  std::vector<absl::string_view> allowed;  // The first one is advised.
};

absl::Status BadSettingError(const std::string& where, absl::string_view setting,
                             absl::string_view value, absl::string_view wanted) {
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "STORE",
       .catalogue = "SLUICE-META-0010",
       .hint = absl::StrCat("set `", setting, " ", wanted, "` in the redis.conf of that Redis")},
      absl::StrCat("Redis at ", where, " has ", setting, " ", value,
                   ", which would lose jobs; wanted: ", wanted));
}

absl::Status CheckServer(redis::MasterConnection& redis, const std::string& where) {
  const std::vector<redis::Command> ask = {{"INFO", "cluster"}, {"INFO", "replication"}};
  SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run(ask));
  if (absl::StrContains(said[0].text, "cluster_enabled:1"))
    return BadSettingError(where, "cluster-enabled", "yes", "no");
  if (absl::StrContains(said[1].text, "role:master")) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "STORE",
                    .catalogue = "SLUICE-META-0010",
                    .hint = "name the master, which `redis-cli info replication` tells"},
                   absl::StrCat("Redis at ", where, " is a replica (replicaof), not a master"));
}

absl::Status CheckSetting(const Setting& setting, const redis::Reply& said,
                          const std::string& where) {
  if (said.list.size() != 2) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "STORE",
                      .catalogue = "SLUICE-META-0010",
                      .hint = "let the user of the controller call it (ACL rule +config|get)"},
                     absl::StrCat("Redis at ", where, " does not answer CONFIG GET ", setting.name,
                                  ": ", said.text));
  }
  const std::string& value = said.list[1].text;
  if (std::count(setting.allowed.begin(), setting.allowed.end(), value) > 0)
    return absl::OkStatus();
  return BadSettingError(where, setting.name, value, setting.allowed[0]);
}

}  // namespace

absl::Status CheckRedis(redis::MasterConnection& redis, const std::string& where) {
  SLUICE_RETURN_IF_ERROR(CheckServer(redis, where));
  const std::vector<Setting> settings = {{"appendonly", {"yes"}},
                                         {"appendfsync", {"everysec", "always"}},
                                         {"maxmemory-policy", {"noeviction"}}};
  std::vector<redis::Command> ask;
  for (const Setting& setting : settings) ask.push_back({"CONFIG", "GET", setting.name});
  SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run(ask));
  for (size_t i = 0; i < settings.size(); ++i)
    SLUICE_RETURN_IF_ERROR(CheckSetting(settings[i], said[i], where));
  return absl::OkStatus();
}

}  // namespace sluice::meta
