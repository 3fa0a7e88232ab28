#include "services/trainer/publication.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/convert.h"
#include "common/weights/publisher.h"

namespace sluice::trainer {

struct Publication::Thread {
  std::thread thread;
};

Publication::Publication(WeightPublisher* weights, QueueClient* queue, Clock* clock,
                         std::optional<PolicyVersion> published, std::function<void()> failed)
    : weights_(weights),
      queue_(queue),
      clock_(clock),
      failed_(std::move(failed)),
      published_(published),
      thread_(new Thread) {
  thread_->thread = std::thread([this] { Run(); });
}

Publication::~Publication() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  thread_->thread.join();
}

void Publication::Offer(std::shared_ptr<const TensorSet> weights, PolicyVersion version,
                        std::optional<int64_t> hold_until) {
  MutexLock lock(&mu_);
  waiting_ = Item{std::move(weights), version, hold_until};
  changed_.NotifyAll();
}

void Publication::Run() {
  while (true) {
    Item item;
    {
      MutexLock lock(&mu_);
      busy_ = false;
      changed_.NotifyAll();
      while (!stopped_ && !waiting_.has_value()) changed_.Wait(&mu_);
      if (stopped_) return;
      item = *std::exchange(waiting_, std::nullopt);
      busy_ = true;
    }

    const absl::Duration start = clock_->Monotonic();
    const absl::Status status = Publish(item);
    {
      MutexLock lock(&mu_);
      seconds_ += absl::ToDoubleSeconds(clock_->Monotonic() - start);
      if (status.ok()) {
        published_ = item.version;
        continue;
      }
      failure_ = Annotate(status, absl::StrCat("publishing version ", item.version.str()));
      busy_ = false;
      changed_.NotifyAll();
    }

    failed_();
    return;
  }
}

absl::Status Publication::Publish(const Item& item) {
  SLUICE_FAILPOINT_STATUS("trainer.publish.before");
  SLUICE_ASSIGN_OR_RETURN(const LatestVersion latest,
                          weights_->Publish(*item.weights, item.version, "", item.hold_until));
  queue::v1::AdvanceVersionRequest request;
  {
    MutexLock lock(&mu_);
    if (published_.has_value()) *request.mutable_expected() = rpc::ToProto(*published_);
  }
  *request.mutable_next() = rpc::ToProto(item.version);
  request.set_state(latest.state.bytes());
  request.set_manifest(latest.manifest);
  return queue_->AdvanceVersion(std::move(request)).status();
}

absl::Status Publication::Flush() {
  MutexLock lock(&mu_);
  while (failure_.ok() && (waiting_.has_value() || busy_)) changed_.Wait(&mu_);
  return failure_;
}

absl::Status Publication::status() const {
  MutexLock lock(&mu_);
  return failure_;
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
