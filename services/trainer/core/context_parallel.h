#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/models/train_model.h"
#include "services/trainer/core/ranks.h"

namespace sluice::trainer {

class Optimizer;

// Has all ranks compute each long sequence together (context parallelism), whichever rank it was
// dealt to. That rank, the owner, scores the sequence as if it were alone: the model that Wrap()
// returns sends the batch to the other ranks, each scores the tokens of its parts, and the owner
// gets the scores of all. From these it computes its loss, and sends the gradient of each score
// back. So only the pass is shared, and everything else that a step does with a sequence stays with
// its owner. The ranks' gradients of the parameters are added up as ever.
//
// The ranks come together for such a pass by SharedPasses, because only its owner knows of it.
// Errors are those of Collective and of the passes. Not thread-safe.
class ContextParallel {
 public:
  // `ranks` outlives this. Make it before anything else that adds kinds to ranks->passes(): then a
  // pass of a long sequence comes before other passes, and no second one begins before its backward
  // pass is done.
  explicit ContextParallel(Ranks* ranks);

  // The optimizer of the policy, which outlives this; it must be set before a backward pass. All
  // ranks add to the accumulator that the owner has selected.
  void SetOptimizer(Optimizer* optimizer) { optimizer_ = optimizer; }

  // Returns a model that scores long sequences together with the other ranks, and does all else by
  // itself. It belongs to this object, and its Backward() is that of its last Score() with
  // gradients. All ranks wrap models of the same kind in the same order, and all passes of a kind
  // find equal weights on all ranks.
  std::unique_ptr<TrainModel> Wrap(std::unique_ptr<TrainModel> model);

  // Number of forward passes that the ranks have made together since the last call.
  int64_t TakePasses() { return std::exchange(passes_, 0); }

 private:
  class Wrapped;
  // A forward pass that all ranks have made, up to its backward pass.
  struct Pass {
    TrainModel* model = nullptr;
    size_t rows = 0;             // Of all ranks.
    TokenScores scores;          // Of this rank's rows.
    std::vector<size_t> scored;  // Which of all rows these are.
  };

  // What the owner does. Score() returns the scores of all rows, and keeps the pass if it has
  // gradients.
  absl::StatusOr<TokenScores> Score(uint32_t model, const PackedBatch& batch,
                                    absl::Span<const int64_t> targets, double temperature);
  absl::Status Backward(absl::Span<const float> logprobs, absl::Span<const float> entropy,
                        bool keep_graph);
  // What all ranks do, with the owner's message.
  absl::StatusOr<TokenScores> MakeForward(absl::string_view message);
  absl::Status MakeBackward(absl::string_view message);
  // Returns the message of the first rank that has one. Several ranks may want a forward pass at
  // the same time, and then the others want it again.
  struct Message {
    int owner;
    std::string bytes;
  };
  absl::StatusOr<Message> Share(absl::string_view mine);

  Ranks* const ranks_;
  const SequenceShare share_;
  int backward_kind_ = 0, forward_kind_ = 0;
  Optimizer* optimizer_ = nullptr;
  std::vector<TrainModel*> models_;  // Those that Wrap() got.
  Pass pass_;
  int64_t passes_ = 0;
};

}  // namespace sluice::trainer
