#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "services/queue/core/counters.h"
#include "services/queue/core/event.h"
#include "services/queue/core/prompts.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// Watches what becomes of a job's prompts and raises alarms. It fails the job when too much of the
// data is of no use.
class Failures {
 public:
  // Groups of a source that were dropped as unscorable since its last group that was scored.
  struct UnscorableRun {
    uint64_t groups = 0;
    uint64_t first = 0;  // The row of the first of them.
    std::string source;  // Its name.
    std::string cause;   // What the reward said of it.

    std::string Describe() const;
  };

  // All three outlive this object. Alarms are counted in `counters`.
  Failures(const Spec& spec, const Prompts& prompts, Counters* counters)
      : spec_(spec), prompts_(prompts), counters_(counters) {}

  // Where alarms go; null between two events.
  void SetEffects(Effects* effects) { effects_ = effects; }

  // Why the job cannot go on; OK while it can. Whoever asks for work or for a batch gets this
  // answer, until a trainer restores the job.
  const absl::Status& failure() const { return failure_; }
  // A trainer restored the job: it may try again.
  void Reset();

  // The first ten alarms of a kind are sent, and then only each one that doubles their number: a
  // fault of the data can raise one for every row.
  void RaiseAlarm(const char* code, std::string message);

  // A rollout dropped a group of this row. Reasons that do not lie in the row itself are ignored.
  void NoteUnusable(const RowRef& row, const std::string& reason);
  // The row has just been quarantined. `source` is the name of its source. `why` is the part of the
  // alarm's text that follows the row, such as "failed 3 times, last as lost".
  void NoteQuarantined(const RowRef& row, const std::string& source, const std::string& reason,
                       const std::string& why);
  // A group was dropped, or trained. These two functions count how often in succession its row was
  // drawn without being trained. Drops as filtered, closed, prompt_too_long or bad_row do not
  // count.
  void NoteDropped(const RowRef& row, const std::string& source, const std::string& reason);
  void NoteTrained(const RowRef& row) { starved_.erase({row.source, row.index}); }
  // A group could not be scored.
  void NoteUnscorable(const RowRef& row, const std::string& source, const std::string& cause);
  // A group was scored, and the group filter accepted or rejected it. A long run of rejected groups
  // ends the job. A long run of one source, while others are accepted, is an alarm.
  void NoteAccepted(const RowRef& row);
  void NoteRejected(const RowRef& row, const std::string& source, const std::string& why);

  // Null: the last group of each source was scored.
  const UnscorableRun* FindLongestUnscorable() const;
  // Rows that were not trained in their last two draws or more, of those that NoteDropped() counts.
  uint64_t CountStarved() const;

 private:
  friend struct Access;  // dump.cc

  void FailJob(const char* code, absl::Status failure);
  // Fails the job if no row of the data can be used any more.
  void CheckPrompts(const std::string& reason, const std::string& hint);

  const Spec& spec_;
  const Prompts& prompts_;
  Counters* const counters_;
  Effects* effects_ = nullptr;

  absl::Status failure_;
  uint64_t rejected_in_a_row_ = 0;
  std::map<uint32_t, uint64_t> rejected_of_source_;  // In a row, by source.
  // How often in succession each row (source, index) was drawn without being trained.
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> starved_;
  // Source and row of each prompt that no rollout could take. None of them is quarantined.
  std::set<std::pair<uint32_t, uint64_t>> unusable_;
  std::map<uint32_t, UnscorableRun> unscorable_;  // By source. Absent: its last group was scored.
};

}  // namespace sluice::queue
