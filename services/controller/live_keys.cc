#include "services/controller/live_keys.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/config/bind.h"
#include "common/config/leaves.h"
#include "common/config/problems.h"
#include "common/config/yaml_tree.h"

namespace sluice::controller {
namespace {

constexpr char kTrainerReads[] =
    "its trainer reads it only when the job is submitted; cancel the job and submit it with the "
    "new value";
constexpr char kEvaluationReads[] =
    "trainer and rollouts read it only when the job is submitted; `sluice eval` evaluates a "
    "version of a running job";
constexpr char kDaemonsChange[] =
    "it decides which daemons can work for the job; cancel the job and submit it with the new "
    "value";

constexpr size_t kMaxValueBytes = 256;

absl::Status RefuseSet(absl::string_view message, std::string hint) {
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "SET", .catalogue = "SLUICE-CTL-0026", .hint = std::move(hint)},
                   message);
}

std::string ListSettable() {
  std::vector<absl::string_view> keys;
  for (const LiveKey& live : LiveKeys()) {
    if (live.refusal == nullptr) keys.push_back(live.key);
  }
  return absl::StrCat("these can be set: ", absl::StrJoin(keys, ", "));
}

absl::Status CheckKey(absl::string_view key) {
  for (const LiveKey& live : LiveKeys()) {
    if (live.key != key) continue;
    if (live.refusal == nullptr) return absl::OkStatus();
    return RefuseSet(absl::StrCat(key, " of a submitted job cannot be changed: ", live.refusal),
                     ListSettable());
  }
  return RefuseSet(absl::StrCat("\"", key.substr(0, 80),
                                "\" is no key that can be changed once a job is submitted"),
                   ListSettable());
}

// The value of `key` as the job file writes it.
std::string ValueText(const job::v1::JobSpec& spec, absl::string_view key) {
  std::string text;
  config::VisitLeaves(spec, /*unset_blocks=*/true, [&](const config::Leaf& leaf) {
    if (leaf.path == key) text = config::LeafText(*leaf.message, *leaf.field);
  });
  return text;
}

}  // namespace

const std::vector<LiveKey>& LiveKeys() {
  static const std::vector<LiveKey> kKeys = {
      {"trainer.optimizer.lr", kTrainerReads},
      {"checkpoint.every_steps", kTrainerReads},
      {"checkpoint.every", kTrainerReads},
      {"checkpoint.keep_last", kTrainerReads},
      {"checkpoint.keep_every_steps", kTrainerReads},
      {"eval.every_steps", kEvaluationReads},
      {"eval.datasets", kEvaluationReads},
      {"eval.samples", kEvaluationReads},
      {"eval.temperature", kEvaluationReads},
      {"eval.share", kEvaluationReads},
      {"resources.pool", kDaemonsChange},
      {"resources.device", kDaemonsChange},
      {"resources.trainer", kDaemonsChange},
      {"resources.rollout.min"},
      {"resources.rollout.max"},
      {"resources.reward.min"},
      {"resources.reward.max"},
      {"resources.queue", kDaemonsChange},
      {"limits.max_steps", kTrainerReads},
      {"limits.wall"},
      {"limits.tokens", "a limit on tokens is not in this build; use limits.wall"},
      {"limits.start"},
      {"limits.stall_warn"},
      {"limits.stall_fail"},
      {"limits.restarts_per_hour"},
      {"limits.skipped_steps", kTrainerReads},
  };
  return kKeys;
}

absl::StatusOr<job::v1::JobSpec> SetLiveKeys(const job::v1::JobSpec& spec,
                                             const std::map<std::string, std::string>& values,
                                             std::string* changes) {
  if (values.empty()) return RefuseSet("no value is given", "give KEY=VALUE");
  std::vector<std::string> sources = {"job"};
  for (const auto& [key, value] : values) {
    SLUICE_RETURN_IF_ERROR(CheckKey(key));
    // The value is parsed on the thread that does everything, and parsing is not made for
    // megabytes.
    if (value.size() > kMaxValueBytes) {
      return RefuseSet(absl::StrCat("the value of ", key, " has ", value.size(),
                                    " bytes; the limit is ", kMaxValueBytes),
                       "give a number or a duration");
    }
    sources.push_back(absl::StrCat(key, "=", value));
  }

  config::Problems problems(sources);
  config::YamlNode root;
  root.kind = config::YamlNode::Kind::kMap;
  for (size_t i = 1; i < sources.size(); ++i)
    config::ApplySet(sources[i], static_cast<int>(i), &root, &problems);
  job::v1::JobSpec changed = spec;
  if (problems.empty()) config::Binder("", "", "job", &problems).Bind(root, &changed, "");
  if (!problems.empty())
    return RefuseSet(problems.Take()[0].text, "give the value as the job file writes it");

  std::vector<std::string> lines;
  for (const auto& [key, value] : values) {
    lines.push_back(absl::StrCat(key, ": ", ValueText(spec, key), " -> ", ValueText(changed, key)));
  }
  *changes = absl::StrJoin(lines, "; ");
  return changed;
}

}  // namespace sluice::controller
