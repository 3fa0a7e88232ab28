#include "services/queue/core/failures.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {
constexpr int64_t kAlarmsSent = 10;  // Of each kind, so many are sent one by one.
constexpr uint32_t kStarved = 5;     // After so many draws without training there is an alarm.
// The job fails after this many groups in a row of one source that could not be scored, or after as
// many as a batch has, if that is more.
constexpr uint64_t kUnscorableGroups = 64;

absl::Status NoSignalError(uint64_t rejected, const std::string& counts) {
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "NO_SIGNAL",
                    .catalogue = "SLUICE-QUEUE-0003",
                    .hint = "check the reward and the difficulty of the prompts"},
                   absl::StrCat(rejected, " groups in a row were rejected by the filter (in all: ",
                                counts, ")"));
}

absl::Status UnscorableError(const std::string& message) {
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "UNSCORABLE",
                    .catalogue = "SLUICE-QUEUE-0011",
                    .hint = "check the rewards and the gold answers of that data source"},
                   message);
}

std::string DescribeFiltered(const std::map<std::string, int64_t>& filtered) {
  std::string text;
  for (const auto& [reason, count] : filtered) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", absl::StrReplaceAll(reason, {{"_", " "}}), " ",
                    count);
  }
  return text;
}
}  // namespace

std::string Failures::UnscorableRun::Describe() const {
  return absl::StrCat("every answer of data source ", source, " is unscorable: none of its last ",
                      groups, " groups could be scored; the first was row ", first, ": ", cause);
}

void Failures::Reset() {
  failure_ = absl::OkStatus();
  rejected_in_a_row_ = 0;
  unusable_.clear();
  unscorable_.clear();
}

void Failures::RaiseAlarm(const char* code, std::string message) {
  const int64_t count = ++counters_->alarms[code];
  if (count <= kAlarmsSent) return effects_->alarms.push_back({code, std::move(message)});

  const bool doubled =
      count % kAlarmsSent == 0 && std::has_single_bit(static_cast<uint64_t>(count / kAlarmsSent));
  if (!doubled) return;
  absl::StrAppend(&message, " (", count,
                  " alarms of this kind so far; the next is told when there are ", 2 * count, ")");
  effects_->alarms.push_back({code, std::move(message)});
}

void Failures::FailJob(const char* code, absl::Status failure) {
  failure_ = std::move(failure);
  RaiseAlarm(code, std::string(failure_.message()));
}

void Failures::CheckPrompts(const std::string& reason, const std::string& hint) {
  if (unusable_.size() + prompts_.quarantined() < prompts_.rows() || !failure_.ok()) return;
  FailJob("no_prompts",
          ErrorWith(absl::StatusCode::kFailedPrecondition,
                    {.reason = "NO_PROMPTS", .catalogue = "SLUICE-QUEUE-0005", .hint = hint},
                    absl::StrCat("no row of the data can be used: all ", prompts_.rows(),
                                 " were dropped, the last as ", reason)));
}

// Without a limit of epochs, rows that no rollout can use would be drawn for ever.
void Failures::NoteUnusable(const RowRef& row, const std::string& reason) {
  if ((reason != "prompt_too_long" && reason != "bad_row") || row.source == RowRef::kOutside)
    return;
  if (prompts_.IsQuarantined(row)) return;

  unusable_.insert({row.source, row.index});
  CheckPrompts(reason,
               "raise data.order.max_prompt and model.max_context, or mend the rows that the "
               "rollouts' logs name");
}

void Failures::NoteQuarantined(const RowRef& row, const std::string& source,
                               const std::string& reason, const std::string& why) {
  ++counters_->quarantined;
  unusable_.erase({row.source, row.index});
  RaiseAlarm("quarantined",
             absl::StrCat("prompt ", source, ":", row.index, " ", why, "; it is drawn no more"));
  CheckPrompts(reason, "see the alarms among `sluice job events`");
}

void Failures::NoteDropped(const RowRef& row, const std::string& source,
                           const std::string& reason) {
  // The end of the job says nothing about the prompt. The other three reasons have alarms or errors
  // of their own.
  const bool no_sign = reason == "filtered" || reason == "closed" || reason == "prompt_too_long" ||
                       reason == "bad_row";
  if (row.source == RowRef::kOutside || no_sign) return;

  const uint32_t count = ++starved_[{row.source, row.index}];
  if (count != kStarved) return;
  RaiseAlarm("starved",
             absl::StrCat("prompt ", source, ":", row.index, " was drawn ", count,
                          " times in a row and never trained, last dropped as ", reason));
}

void Failures::NoteUnscorable(const RowRef& row, const std::string& source,
                              const std::string& cause) {
  UnscorableRun& run = unscorable_[row.source];
  if (run.groups++ == 0) {
    run.first = row.index;
    run.source = source;
    run.cause = cause;
  }

  const bool all_rows = row.source != RowRef::kOutside && prompts_.AllQuarantined(row.source);
  const bool too_many = run.groups >= std::max<uint64_t>(kUnscorableGroups, spec_.groups_per_step);
  if ((!all_rows && !too_many) || !failure_.ok()) return;
  FailJob("unscorable", UnscorableError(run.Describe()));
}

void Failures::NoteAccepted(const RowRef& row) {
  unscorable_.erase(row.source);
  rejected_in_a_row_ = 0;
  rejected_of_source_.erase(row.source);
}

void Failures::NoteRejected(const RowRef& row, const std::string& source, const std::string& why) {
  unscorable_.erase(row.source);
  ++counters_->filtered[why];
  const uint64_t of_source = ++rejected_of_source_[row.source];
  ++rejected_in_a_row_;
  const uint64_t limit = uint64_t{spec_.max_rejected_steps} * spec_.groups_per_step;
  if (limit == 0 || !failure_.ok()) return;

  const std::string counts = DescribeFiltered(counters_->filtered);
  if (rejected_in_a_row_ >= limit) {
    FailJob("no_signal", NoSignalError(rejected_in_a_row_, counts));
  } else if (of_source == limit) {
    RaiseAlarm("no_signal_source",
               absl::StrCat("the last ", of_source, " groups of data source ", source,
                            " were all rejected by the filter, others were not (in all: ", counts,
                            "); check its answers and its difficulty, or take it out"));
  }
}

const Failures::UnscorableRun* Failures::FindLongestUnscorable() const {
  const auto fewer = [](const auto& a, const auto& b) { return a.second.groups < b.second.groups; };
  const auto longest = std::max_element(unscorable_.begin(), unscorable_.end(), fewer);
  return longest == unscorable_.end() ? nullptr : &longest->second;
}

uint64_t Failures::CountStarved() const {
  return std::count_if(starved_.begin(), starved_.end(),
                       [](const auto& row) { return row.second > 1; });
}

}  // namespace sluice::queue
