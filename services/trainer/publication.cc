#include "services/trainer/publication.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/convert.h"
#include "common/weights/publisher.h"

namespace sluice::trainer {

Publication::Publication(WeightPublisher* weights, QueueClient* queue, Clock* clock,
                         const PublishMetrics& metrics, std::optional<PolicyVersion> published,
                         std::function<void()> failed)
    : weights_(weights),
      queue_(queue),
      clock_(clock),
      metrics_(metrics),
      published_(published),
      worker_(std::move(failed)) {}

void Publication::Offer(std::shared_ptr<const TensorSet> weights, PolicyVersion version,
                        std::optional<int64_t> hold_until) {
  worker_.Replace([this, weights = std::move(weights), version, hold_until] {
    return Annotate(Publish(*weights, version, hold_until),
                    absl::StrCat("publishing version ", version.str()));
  });
}

absl::Status Publication::Publish(const TensorSet& weights, PolicyVersion version,
                                  std::optional<int64_t> hold_until) {
  const absl::Duration start = clock_->Monotonic();
  SLUICE_FAILPOINT_STATUS("trainer.publish.before");
  SLUICE_ASSIGN_OR_RETURN(const PublishedVersion latest,
                          weights_->Publish(weights, version, "", hold_until));
  const absl::Duration encoded = clock_->Monotonic();
  metrics_.encode.Observe(absl::ToDoubleSeconds(encoded - start));
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

PolicyVersion Publication::published() const {
  MutexLock lock(&mu_);
  return published_.value_or(PolicyVersion{});
}

double Publication::seconds() const {
  MutexLock lock(&mu_);
  return seconds_;
}

}  // namespace sluice::trainer
