#include "tests/integration/harness/versions.h"

#include "common/rpc/backoff.h"
#include "common/rpc/stream.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice::integration {

PublishedVersions::PublishedVersions(Cluster* cluster, std::string trainer, std::string job)
    : address_(cluster->address(trainer)), job_(std::move(job)), thread_([this] { Read(); }) {}

PublishedVersions::~PublishedVersions() {
  cancel_.Trigger();
  thread_.join();
}

void PublishedVersions::Read() {
  weights::v1::WatchRequest request;
  request.mutable_call()->mutable_job()->set_job(job_);
  request.mutable_call()->mutable_job()->set_worker("rollout-0");
  request.mutable_call()->mutable_job()->set_incarnation(1);
  request.set_policy("policy");

  rpc::Backoff backoff({.longest = absl::Milliseconds(100)});
  do {
    const auto channel = rpc::Connect(address_, {rpc::Role::kTrainer});
    if (!channel.ok()) continue;
    rpc::ClientStream stream(**channel, *weights::v1::WatchRequest::descriptor(), &cancel_);
    if (!stream.Write(request)) continue;
    stream.WritesDone();
    for (weights::v1::Latest latest; stream.Read(&latest);) {
      if (!latest.has_version()) continue;  // A heartbeat.
      MutexLock lock(&mu_);
      seen_[latest.version().number()][latest.version().incarnation()] = latest.state();
    }
  } while (!cancel_.WaitFor(backoff.Next()));
}

std::map<int64_t, std::map<int64_t, std::string>> PublishedVersions::seen() const {
  MutexLock lock(&mu_);
  return seen_;
}

}  // namespace sluice::integration
