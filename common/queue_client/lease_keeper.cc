#include "common/queue_client/lease_keeper.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"

namespace sluice {
namespace {
constexpr size_t kPerCall = 1000;  // Most leases in one Renew.

// A Renew without leases renews all that the worker holds. That would keep those alive forever that
// an earlier session of this worker could not give back, because its queue had moved; nobody works
// for them. So a keeper that holds none names this one, which no queue grants.
std::string NoLease() { return std::string(16, '\0'); }
}  // namespace

struct LeaseKeeper::Impl {
  QueueClient* const client;
  const Options options;
  rpc::Cancel cancel;
  std::thread thread;

  Mutex mu;
  CondVar changed;
  std::set<std::string> held ABSL_GUARDED_BY(mu);
  std::vector<common::v1::Loaded> loaded ABSL_GUARDED_BY(mu);
  // `requests` counts the requests to renew at once; the queue has answered the first `answered` of
  // them. answered <= requests.
  int64_t requests ABSL_GUARDED_BY(mu) = 0;
  int64_t answered ABSL_GUARDED_BY(mu) = 0;
  bool active ABSL_GUARDED_BY(mu) = false;  // Renewing has started.
  bool stopped ABSL_GUARDED_BY(mu) = false;
  absl::Duration period ABSL_GUARDED_BY(mu);  // Between two renewals.
  absl::Status failure ABSL_GUARDED_BY(mu);   // Not OK: renewal has failed for good.

  void Run() ABSL_LOCKS_EXCLUDED(mu) {
    rpc::Backoff backoff(client->options().backoff);
    while (AwaitDue()) {
      const absl::Status status = RenewAll();
      if (cancel.triggered()) return;
      if (status.ok()) {
        backoff.Reset();
        continue;
      }
      // NOT_YET or RESTORE_FIRST: the job is still being set up.
      if (absl::IsFailedPrecondition(status)) {
        if (cancel.WaitFor(backoff.Next())) return;
        continue;
      }
      {
        MutexLock lock(&mu);
        failure = status;
        changed.NotifyAll();
      }
      if (options.on_failed) options.on_failed(status);
      return;
    }
  }

  // Waits until the period is over, or a renewal is requested at once. Returns false if stopped.
  bool AwaitDue() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    while (!active && !stopped) changed.Wait(&mu);
    const absl::Time due = absl::Now() + period;
    while (!stopped && requests == answered) {
      const absl::Duration left = due - absl::Now();
      if (left <= absl::ZeroDuration()) return true;
      changed.WaitFor(&mu, left);
    }
    return !stopped;
  }

  // Renews all leases, kPerCall at a time. Each call also carries the versions.
  absl::Status RenewAll() ABSL_LOCKS_EXCLUDED(mu) {
    // Copy the state, so that no call is made under the lock.
    std::vector<std::string> leases;
    std::vector<common::v1::Loaded> versions;
    int64_t answering = 0;
    {
      MutexLock lock(&mu);
      leases.assign(held.begin(), held.end());
      if (leases.empty()) leases.push_back(NoLease());
      versions = loaded;
      answering = requests;
    }

    size_t from = 0;
    do {
      const size_t to = std::min(leases.size(), from + kPerCall);
      queue::v1::RenewRequest request;
      request.mutable_leases()->Add(leases.begin() + static_cast<ptrdiff_t>(from),
                                    leases.begin() + static_cast<ptrdiff_t>(to));
      request.mutable_loaded()->Add(versions.begin(), versions.end());
      SLUICE_RETURN_IF_ERROR(Renew(std::move(request)));
      from = to;
    } while (from < leases.size());

    MutexLock lock(&mu);
    SLUICE_CHECK(answered <= answering && answering <= requests);
    answered = answering;
    changed.NotifyAll();
    return absl::OkStatus();
  }

  absl::Status Renew(queue::v1::RenewRequest request) ABSL_LOCKS_EXCLUDED(mu) {
    *request.mutable_call() = client->MakeCall();
    queue::v1::RenewResponse response;
    SLUICE_RETURN_IF_ERROR(rpc::Call(client->channel(), request, &response,
                                     {.give_up = absl::InfiniteDuration(),
                                      .cancel = &cancel,
                                      .backoff = client->options().backoff}));

    std::vector<std::string> lost;
    {
      MutexLock lock(&mu);
      if (const absl::Duration ttl = rpc::FromProto(response.ttl()); ttl > absl::ZeroDuration())
        period = ttl / 3;
      for (const std::string& lease : response.lost()) {
        // A lease that is not held any more was forgotten meanwhile, which is no loss.
        if (held.erase(lease) > 0) lost.push_back(lease);
      }
    }
    if (!lost.empty() && options.on_lost) options.on_lost(lost);
    return absl::OkStatus();
  }
};

LeaseKeeper::LeaseKeeper(QueueClient* client, Options options)
    : impl_(new Impl{client, std::move(options)}) {
  {
    MutexLock lock(&impl_->mu);
    impl_->period = impl_->options.first_period;
  }
  impl_->thread = std::thread([this] { impl_->Run(); });
}

LeaseKeeper::~LeaseKeeper() { Stop(); }

void LeaseKeeper::Hold(absl::string_view lease) {
  MutexLock lock(&impl_->mu);
  impl_->held.insert(std::string(lease));
  if (impl_->active) return;
  impl_->active = true;
  impl_->changed.NotifyAll();
}

void LeaseKeeper::Forget(absl::string_view lease) {
  MutexLock lock(&impl_->mu);
  impl_->held.erase(std::string(lease));
}

void LeaseKeeper::SetLoaded(std::vector<common::v1::Loaded> loaded) {
  MutexLock lock(&impl_->mu);
  impl_->loaded = std::move(loaded);
  impl_->active = true;
  ++impl_->requests;
  impl_->changed.NotifyAll();
}

void LeaseKeeper::RenewNow() {
  MutexLock lock(&impl_->mu);
  ++impl_->requests;
  impl_->changed.NotifyAll();
}

absl::Status LeaseKeeper::Sync() {
  MutexLock lock(&impl_->mu);
  impl_->active = true;
  const int64_t mine = ++impl_->requests;
  impl_->changed.NotifyAll();
  while (impl_->answered < mine && !impl_->stopped && impl_->failure.ok())
    impl_->changed.Wait(&impl_->mu);
  if (impl_->answered >= mine) return absl::OkStatus();
  return impl_->failure.ok() ? absl::CancelledError("the lease keeper has stopped")
                             : impl_->failure;
}

void LeaseKeeper::Stop() {
  {
    MutexLock lock(&impl_->mu);
    impl_->stopped = true;
    impl_->changed.NotifyAll();
  }
  impl_->cancel.Trigger();
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace sluice
