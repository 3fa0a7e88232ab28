#include "services/trainer/publication.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/convert.h"
#include "common/weights/publisher.h"
#include "services/trainer/canary_trial.h"

namespace sluice::trainer {
namespace {

// Sets the first row of the first matrix to NaN, in any floating-point type.
void SpoilRow(TensorSet* weights) {
  for (size_t i = 0; i < weights->size(); ++i) {
    const std::vector<int64_t>& shape = weights->specs()[i].shape;
    if (shape.size() != 2) continue;
    std::memset(weights->data(i), 0xff, static_cast<size_t>(weights->bytes(i) / shape[0]));
    return;
  }
}

}  // namespace

Publication::Publication(WeightPublisher* weights, QueueClient* queue, Clock* clock,
                         const PublishMetrics& metrics, std::optional<PolicyVersion> published,
                         std::optional<Canary> canary, std::function<void()> failed)
    : weights_(weights),
      queue_(queue),
      clock_(clock),
      metrics_(metrics),
      canary_(std::move(canary)),
      published_(published),
      worker_(std::move(failed)) {}

void Publication::Offer(std::shared_ptr<const TensorSet> weights, PolicyVersion version,
                        std::optional<int64_t> hold_until) {
  worker_.Replace([this, weights = std::move(weights), version, hold_until] {
    TensorSet spoiled;
    const bool spoils = !HitFailpoint("trainer.publish.nan_row").ok();
    if (spoils) {
      spoiled = *weights;
      SpoilRow(&spoiled);
    }
    const absl::Status published = Publish(spoils ? spoiled : *weights, version, hold_until);
    // What withdraws a version says all of it.
    if (ReasonOf(published) == "WITHDRAWN") return published;
    return Annotate(published, absl::StrCat("publishing version ", version.str()));
  });
}

absl::Status Publication::Publish(const TensorSet& weights, PolicyVersion version,
                                  std::optional<int64_t> hold_until) {
  const absl::Duration start = clock_->Monotonic();
  SLUICE_FAILPOINT_STATUS("trainer.publish.before");
  const bool on_trial = canary_.has_value() && version.number > canary_->known;
  SLUICE_ASSIGN_OR_RETURN(const PublishedVersion latest,
                          on_trial ? PublishTried(weights, version)
                                   : weights_->Publish(weights, version, "", hold_until));
  const absl::Duration encoded = clock_->Monotonic();
  if (!on_trial) metrics_.encode.Observe(absl::ToDoubleSeconds(encoded - start));
  for (const WeightPublisher::Edge& edge : weights_->edges()) {
    if (edge.version.version == version) metrics_.bytes.Add(static_cast<double>(edge.bytes));
  }

  queue::v1::AdvanceVersionRequest request;
  {
    MutexLock lock(&mu_);
    if (published_.has_value()) *request.mutable_expected() = rpc::ToProto(*published_);
  }
  *request.mutable_next() = rpc::ToProto(version);
  request.set_state(latest.state.bytes());
  request.set_manifest(latest.manifest);
  SLUICE_RETURN_IF_ERROR(queue_->AdvanceVersion(std::move(request)).status());

  const absl::Duration end = clock_->Monotonic();
  metrics_.commit.Observe(absl::ToDoubleSeconds(end - encoded));
  MutexLock lock(&mu_);
  published_ = version;
  seconds_ += absl::ToDoubleSeconds(end - start);
  return absl::OkStatus();
}

// During a replay engines keep newer versions than those that are published, but a canary must load
// what it is to try, so a version on trial is announced without a version up to which they do.
absl::StatusOr<PublishedVersion> Publication::PublishTried(const TensorSet& weights,
                                                           PolicyVersion version) {
  const absl::Duration start = clock_->Monotonic();
  SLUICE_ASSIGN_OR_RETURN(const PublishedVersion staged, weights_->Stage(weights, version));
  const absl::Duration encoded = clock_->Monotonic();
  metrics_.encode.Observe(absl::ToDoubleSeconds(encoded - start));

  // The weights of a skipped step are those of the version before, which all rollouts have.
  const std::optional<PublishedVersion> latest = weights_->latest();
  if (!latest.has_value() || !(latest->state == staged.state)) {
    const absl::Status tried = canary_->trial->Run(weights_, staged, canary_->rules);
    if (ReasonOf(tried) == "WITHDRAWN") metrics_.withdrawn.Add();
    SLUICE_RETURN_IF_ERROR(tried);
    metrics_.trial.Observe(absl::ToDoubleSeconds(clock_->Monotonic() - encoded));
  }
  weights_->Promote(staged);
  return staged;
}

PolicyVersion Publication::published() const {
  MutexLock lock(&mu_);
  return published_.value_or(PolicyVersion{});
}

double Publication::seconds() const {
  MutexLock lock(&mu_);
  return seconds_;
}

}  // namespace sluice::trainer
