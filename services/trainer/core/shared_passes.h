#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {
class Collective;
}

namespace sluice::trainer {

// Passes that all ranks must make together, because each rank has a part of what they need. The
// ranks have unequal numbers of micro-batches, and passes of several kinds. Therefore they agree
// before each pass on which kind comes next; a rank that has no micro-batch for it takes part with
// what it holds of the model, and computes nothing.
//
// Errors are those of Collective, and those of the passes in which this rank takes part.
class SharedPasses {
 public:
  // `collective` outlives this. It may be null if no kind is added.
  explicit SharedPasses(Collective* collective) : collective_(collective) {}

  // Adds a kind and returns its number. All ranks add the same kinds in the same order.
  // `take_part` makes a pass without a micro-batch.
  int AddKind(std::function<absl::Status()> take_part);

  // Returns once all ranks are about to make a pass of this kind, as this rank is. Until then this
  // rank takes part in passes of other kinds.
  absl::Status Begin(int kind);
  // Takes part in passes of the other ranks until no rank has one left. All ranks call it before
  // they use the collective for anything else than such a pass.
  absl::Status AwaitOthers();

 private:
  // Tells the other ranks which kind this rank wants, or that it wants none (the number of kinds).
  // Returns the lowest number that a rank wants.
  absl::StatusOr<int> Agree(int wanted);

  Collective* const collective_;
  std::vector<std::function<absl::Status()>> take_part_;  // By kind.
};

}  // namespace sluice::trainer
