#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/queue/core/row_sampler.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// The rows of a job's sources, read before the job starts. Immutable; may be read from any thread.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual uint64_t rows(uint32_t source) const = 0;
  // The row as JSON: its mapped fields (SourceSpec::fields), with sorted keys.
  virtual std::string json(uint32_t source, uint64_t index) const = 0;
  // The row's level. Only for the sampler levels.
  virtual int64_t level(uint32_t source, uint64_t index) const { return 0; }
};

// Which prompt comes next. Sources take turns by weight, and prompts to be drawn again go first.
// With the sampler uniform, each epoch of a source is a shuffle of its rows by (job seed, source,
// epoch); the others choose rows by the rewards so far (row_sampler.h). The order depends only on
// the seed and on the calls so far. Rows that were answered perfectly may rest (Spec::rest_after).
class Prompts {
 public:
  // What a cursor keeps. Together with the prompts whose groups still live, it tells which draws
  // are finished.
  struct Progress {
    // Per source: fresh draws so far, epoch * rows + place in the epoch's shuffle.
    std::vector<uint64_t> drawn;
    std::vector<RowRef> again;        // Prompts to be drawn again, in this order.
    std::vector<RowRef> quarantined;  // Prompts that are drawn no more. Each row stands here once.
    SamplerState sampler;
  };

  Prompts(const Spec& spec, std::shared_ptr<const RowSource> rows);

  // The next prompt, for a group of this step; none: all epochs are drawn and nothing is to be
  // drawn again. Samplers go by the trained groups of steps below step - max_staleness: at the time
  // of the draw these are trained, however fast rollouts and trainers are.
  std::optional<RowRef> Next(int64_t step);
  bool exhausted() const;

  // What becomes of a prompt that failed: it is drawn again, it is drawn no more from now on, or an
  // earlier failure had quarantined it.
  enum class Fate { kAgain, kQuarantined, kWasQuarantined };
  // Draws the prompt again, as its next occurrence. If it was drawn again `reissues` times already
  // in this epoch, for any reason, it is quarantined.
  Fate Reissue(const RowRef& row);
  // Draws the prompt no more, in no epoch. False: it was quarantined before.
  bool Quarantine(const RowRef& row);
  // Gives back a prompt whose group is to be sampled or trained anew. The prompt did not fail, so
  // it is always drawn again.
  void Return(const RowRef& row);

  // Lets quarantined prompts for which `which` holds be drawn again. Returns how many there were.
  uint32_t Readmit(const std::function<bool(const RowRef&)>& which);

  // Whether the data has this row.
  bool HasRow(const RowRef& row) const {
    return row.source < sources_.size() && row.index < rows_->rows(row.source);
  }
  // Rows of all sources that are drawn.
  uint64_t rows() const;
  bool IsQuarantined(const RowRef& row) const {
    return quarantined_[row.source].contains(row.index);
  }
  uint64_t quarantined() const { return progress_.quarantined.size(); }
  // Whether every row of the source is quarantined.
  bool AllQuarantined(uint32_t source) const;

  // Tells the sampler what the answers of a group have earned: of one that was trained, and of one
  // that was rejected. The latter counts from the next draw on, because a step whose groups are all
  // rejected needs other rows to be filled. Nothing happens if the sampler is uniform.
  void NoteTrained(const GroupResult& result);
  void NoteRejected(const GroupResult& result);
  // The results of all groups of step k have been told.
  void NoteStep(int64_t k);
  // What samplers have to tell since the last call.
  std::vector<std::string> TakeNews() { return std::exchange(news_, {}); }
  // What the sampler has learned, a sentence for each source.
  std::vector<std::string> DescribeSampler() const;

  Row Read(const RowRef& ref) const;
  const Progress& progress() const { return progress_; }
  // Whether the progress is one of these sources.
  bool Fits(const Progress& progress) const;
  void Reset(Progress progress);
  // The run goes back: what its sampler has learned since `state` counts no more. Draws stay drawn.
  void ResetSampler(SamplerState state);

 private:
  friend struct Access;  // dump.cc
  uint64_t ShuffledRow(uint32_t source, uint64_t epoch, uint64_t place);
  bool IsSpent(uint32_t source) const;
  RowRef NextFresh(uint32_t source);
  void SkipQuarantined(uint32_t source);
  void IndexQuarantined();
  RowRef NextByRewards(uint32_t source, int64_t step);
  void LearnBelow(int64_t step);
  void Learn(const GroupResult& result);
  // Counts a perfect visit, after which the row may rest.
  void LearnRest(const GroupResult& result);
  // Whether a row of the source is neither quarantined nor resting.
  bool HasRowAwake(uint32_t source, int64_t step) const;

  struct Shuffle {
    std::optional<uint64_t> epoch;
    std::vector<uint32_t> order;
  };

  const uint64_t seed_;
  const uint32_t epochs_, reissues_, max_staleness_, rest_after_, rest_steps_;
  const std::vector<SourceSpec> sources_;
  const std::shared_ptr<const RowSource> rows_;
  // As long as a source has draws left, its next fresh draw is a row that is not quarantined
  // (SkipQuarantined), so exhausted() need not look ahead.
  Progress progress_;
  std::vector<std::set<uint64_t>> quarantined_;  // Rows of progress_.quarantined, by source.
  std::vector<Shuffle> shuffles_;                // The current epoch of each source.
  const std::unique_ptr<RowSampler> sampler_;    // Null: the sampler is uniform.
  std::vector<std::string> news_;
};

}  // namespace sluice::queue
