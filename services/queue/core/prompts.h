#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/queue/core/types.h"

namespace sluice::queue {

// The rows of a job's sources, read before the job starts. Immutable; may be read from any thread.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual uint64_t rows(uint32_t source) const = 0;
  virtual std::string json(uint32_t source, uint64_t index) const = 0;  // Mapped fields, sorted keys.
};

// Which prompt comes next. A source's epochs are shuffles of its rows by (job seed, source, epoch); sources take turns by
// weight; prompts to be drawn again go first. All of it is a function of the seed and the number of draws so far.
class Prompts {
 public:
  // What a cursor keeps of it. Together with the draws still live this is the set of finished ones.
  struct Progress {
    std::vector<uint64_t> drawn;      // Per source: fresh draws so far, epoch * rows + place in the epoch's shuffle.
    std::vector<RowRef> again;        // To be drawn again, in this order.
    std::vector<RowRef> quarantined;  // Failed too often; drawn no more.
  };

  Prompts(const Spec& spec, std::shared_ptr<const RowSource> rows);

  // The next prompt; none: all epochs are drawn and nothing is to be drawn again.
  std::optional<RowRef> Next();
  bool exhausted() const;

  // Draws the prompt again, as its next occurrence. False: it failed `reissues` times and is quarantined instead.
  bool Reissue(const RowRef& row);
  // Gives a prompt back whose group is to be trained anew; no failure of the prompt, so always drawn again.
  void Return(const RowRef& row);

  // Lets quarantined prompts for which `which` holds be drawn again; how many.
  uint32_t Readmit(const std::function<bool(const RowRef&)>& which);

  // Rows of all sources that are drawn.
  uint64_t rows() const;

  Row Read(const RowRef& ref) const;
  const Progress& progress() const { return progress_; }
  void Reset(Progress progress);

 private:
  friend struct Access;  // dump.cc
  uint64_t Permuted(uint32_t source, uint64_t epoch, uint64_t place);
  bool Spent(uint32_t source) const;

  struct Shuffle {
    std::optional<uint64_t> epoch;
    std::vector<uint32_t> order;
  };

  const uint64_t seed_;
  const uint32_t epochs_, reissues_;
  const std::vector<SourceSpec> sources_;
  const std::shared_ptr<const RowSource> rows_;
  Progress progress_;
  std::vector<Shuffle> shuffles_;  // The current epoch of each source.
};

}  // namespace sluice::queue
