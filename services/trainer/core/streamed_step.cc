#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "services/trainer/core/batch_step.h"
#include "services/trainer/core/micro_batch.h"

namespace sluice::trainer {
namespace {

class StreamedStep : public BatchStep {
 public:
  StreamedStep(const Settings& settings, const Rules& rules, int64_t k, Updater& updater,
               Clock& clock)
      : settings_(settings), updater_(updater), clock_(clock), builder_(settings, rules, k) {
    updater_.ZeroGrad();
    updater_.ranks().BeginStep();
  }

  absl::Status Add(std::vector<Group> groups) override {
    const absl::Duration start = clock_.Monotonic();
    std::vector<Sequence> sequences;
    SLUICE_RETURN_IF_ERROR(builder_.Add(groups, &sequences));
    sequences = updater_.ranks().Share(std::move(sequences));
    for (MicroBatch& batch : MakeMicroBatches(sequences, settings_.micro_batch_tokens)) {
      SLUICE_RETURN_IF_ERROR(updater_.scorer().SetProximal(batch));
      SLUICE_RETURN_IF_ERROR(updater_.AddGradients(batch, &sums_));
    }
    forward_backward_ += clock_.Monotonic() - start;
    return absl::OkStatus();
  }

  absl::Status Finish(StepResult* result) override {
    // The factor of the advantages depends on all groups of the batch, so it multiplies the
    // accumulated gradients only here.
    SLUICE_ASSIGN_OR_RETURN(result->skipped,
                            updater_.Update(sums_, builder_.counts(), builder_.factor(), result));
    result->seconds_forward_backward = absl::ToDoubleSeconds(forward_backward_);
    return absl::OkStatus();
  }

  const SequenceBuilder& sequences() const override { return builder_; }
  const UpdateSums& sums() const override { return sums_; }

 private:
  const Settings& settings_;
  Updater& updater_;
  Clock& clock_;
  SequenceBuilder builder_;
  UpdateSums sums_;
  absl::Duration forward_backward_;
};

}  // namespace

std::unique_ptr<BatchStep> MakeStreamedStep(const Settings& settings, const Rules& rules, int64_t k,
                                            Updater& updater, Clock& clock) {
  return std::make_unique<StreamedStep>(settings, rules, k, updater, clock);
}

}  // namespace sluice::trainer
