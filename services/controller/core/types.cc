#include "services/controller/core/types.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "services/controller/core/names.h"

namespace sluice::controller {

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kQueue: return "queue";
    case Role::kRollout: return "rollout";
    case Role::kReward: return "reward";
    case Role::kTrainer: return "trainer";
  }
  return "";
}

std::optional<double> StepReport::Find(const std::string& name) const {
  const auto value = values.find(name);
  if (value == values.end() || !std::isfinite(value->second)) return std::nullopt;
  return value->second;
}

std::string DurationText(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(
      duration, duration < absl::Seconds(1) ? absl::Milliseconds(100) : absl::Seconds(1)));
}

absl::string_view StateName(JobState state) {
  switch (state) {
    case JobState::kWaiting: return "WAITING";
    case JobState::kStarting: return "STARTING";
    case JobState::kRunning: return "RUNNING";
    case JobState::kRecovering: return "RECOVERING";
    case JobState::kFinishing: return "FINISHING";
    case JobState::kSucceeded: return "SUCCEEDED";
    case JobState::kCancelling: return "CANCELLING";
    case JobState::kCancelled: return "CANCELLED";
    case JobState::kFailed: return "FAILED";
    case JobState::kPausing: return "PAUSING";
    case JobState::kPaused: return "PAUSED";
  }
  return "";
}

bool IsFinal(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kCancelled ||
         state == JobState::kFailed;
}

const Count& Needs::of(Role role) const {
  SLUICE_CHECK(role != Role::kQueue);
  return role == Role::kTrainer ? trainers : role == Role::kRollout ? rollouts : rewards;
}

namespace {
absl::Status CheckAlphabet(absl::string_view what, absl::string_view name,
                           absl::string_view marks) {
  bool good = !name.empty() && name.size() <= 63 && marks.find(name[0]) == absl::string_view::npos;
  for (const char c : name) {
    good = good && (absl::ascii_islower(c) || absl::ascii_isdigit(c) ||
                    marks.find(c) != absl::string_view::npos);
  }
  if (good) return absl::OkStatus();

  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {"NAME", "SLUICE-CTL-0004",
                    absl::StrCat("use at most 63 of the characters a-z, 0-9 and ", marks,
                                 ", and begin with a letter or digit")},
                   absl::StrFormat("\"%s\" is not a valid %s", name.substr(0, 80), what));
}
}  // namespace

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  return CheckAlphabet(what, name, "._-");
}
absl::Status CheckJobName(absl::string_view name) { return CheckAlphabet("job name", name, "-"); }

}  // namespace sluice::controller
