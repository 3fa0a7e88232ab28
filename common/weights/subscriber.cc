#include "common/weights/subscriber.h"

#include <deque>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "common/weights/fetcher.h"
#include "common/weights/publisher.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {

class WeightSubscriber::Impl {
 public:
  Impl(Options options, absl::Span<const TensorSpec> layout, Fingerprint held, OnStaged on_staged)
      : options_(std::move(options)),
        clock_(options_.clock == nullptr ? Clock::Real() : options_.clock),
        fetcher_(
            {.job = options_.job, .worker = options_.worker, .incarnation = options_.incarnation},
            layout),
        on_staged_(std::move(on_staged)),
        held_(held) {
    watch_thread_ = std::thread([this] { WatchLoop(); });
    fetch_thread_ = std::thread([this] { FetchLoop(); });
  }
  ~Impl() {
    stop_.Trigger();
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      CancelCalls();
      changed_.NotifyAll();
    }
    watch_thread_.join();
    fetch_thread_.join();
  }

  void SetSource(const std::string& address) {
    MutexLock lock(&mu_);
    if (source_ == address) return;
    source_ = address;
    latest_.reset();  // It was announced by the old source.
    ForgetFailures();
    CancelCalls();
    changed_.NotifyAll();
  }

  void OnActivated(PolicyVersion version, Fingerprint state, absl::Duration pause) {
    MutexLock lock(&mu_);
    held_version_ = version;
    held_ = state;
    from_nothing_ = refused_ = false;
    offered_ = false;
    ForgetFailures();
    AddReport(version, state, weights::v1::REPLICA_PHASE_ACTIVE, "", "");
    reports_.back().mutable_times()->insert({"pause", absl::ToDoubleSeconds(pause)});
    changed_.NotifyAll();
  }

  void OnRefused(PolicyVersion version, const std::string& cause, const std::string& tensor) {
    log::Error("weights_refused", {{"job_id", options_.job},
                                   {"version", version.str()},
                                   {"tensor", tensor},
                                   {"cause", cause}});
    MutexLock lock(&mu_);
    offered_ = false;
    // What came may have been damaged here, after its check. If not, the way from `held_` is wrong.
    if (std::exchange(refused_, true)) from_nothing_ = true;
    if (latest_ && rpc::FromProto(latest_->version()) == version) DelayRetry(absl::ZeroDuration());
    AddReport(version, held_, weights::v1::REPLICA_PHASE_REFUSED, cause, tensor);
    changed_.NotifyAll();
  }

  void OnDamaged(PolicyVersion version, const std::string& cause, const std::string& tensor) {
    log::Error("weights_damaged", {{"job_id", options_.job},
                                   {"version", version.str()},
                                   {"tensor", tensor},
                                   {"cause", cause}});
    MutexLock lock(&mu_);
    // If a version is offered, the engine will refuse it too, unless it is whole.
    from_nothing_ = true;
    held_version_ = PolicyVersion();
    AddReport(version, Fingerprint(), weights::v1::REPLICA_PHASE_REFUSED, cause, tensor);
    changed_.NotifyAll();
  }

 private:
  // Ends the stream and the download that are open. The trainer may never answer.
  void CancelCalls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (stream_ != nullptr) stream_->TryCancel();
    if (download_cancel_ != nullptr) download_cancel_->Trigger();
  }

  // Adds a report that FetchLoop() will send.
  void AddReport(PolicyVersion version, const Fingerprint& state, weights::v1::ReplicaPhase phase,
                 const std::string& cause, const std::string& tensor)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    weights::v1::ReportRequest report;
    *report.mutable_call() = fetcher_.MakeCall();
    report.set_replica(options_.worker);
    *report.mutable_version() = rpc::ToProto(version);
    report.set_phase(phase);
    report.set_state(state.bytes());
    report.set_cause(cause);
    if (!tensor.empty()) report.add_blame()->set_tensor(tensor);
    reports_.push_back(std::move(report));
  }

  // Keeps `latest_` up to date while there is a source. Runs on watch_thread_.
  void WatchLoop() {
    rpc::Backoff backoff{rpc::BackoffOptions{}};
    while (true) {
      std::shared_ptr<rpc::ClientStream> stream;
      std::string source;
      {
        MutexLock lock(&mu_);
        // Wait for a source, then open a stream to it. The stream is made under the lock, so that
        // SetSource() can cancel it.
        while (!stopping_ && source_.empty()) changed_.Wait(&mu_);
        if (stopping_) return;
        source = source_;
        const auto channel = rpc::Connect(source, {rpc::Role::kTrainer, rpc::Role::kRollout});
        if (!channel.ok()) {
          log::Error("weights_source", {{"job_id", options_.job}, {"error", channel.status()}});
          // Connect() fails only if the address itself cannot be used, so wait for another one.
          source_.clear();
          continue;
        }
        channel_ = *channel;
        weights::v1::WatchRequest request;
        *request.mutable_call() = fetcher_.MakeCall();
        request.set_policy(options_.policy);
        *request.mutable_held()->mutable_version() = rpc::ToProto(held_version_);
        stream = stream_ = std::make_shared<rpc::ClientStream>(
            *channel_, *weights::v1::WatchRequest::descriptor(), &stop_);
        stream->Write(request);
        stream->WritesDone();
      }

      weights::v1::Latest latest;
      while (stream->Read(&latest)) {
        backoff.Reset();
        if (!latest.has_version()) continue;  // A beat: the stream is alive.
        MutexLock lock(&mu_);
        if (source_ != source) break;  // The address has changed meanwhile.
        FollowAnnouncement(std::move(latest));
      }

      const absl::Status end = stream->Finish();
      {
        MutexLock lock(&mu_);
        stream_.reset();
        if (stopping_) return;
      }
      if (stop_.WaitFor(backoff.Next(DetailOf(end).retry_after))) return;
    }
  }

  // Makes an announcement the one to follow, unless a newer version was announced before.
  void FollowAnnouncement(weights::v1::Latest latest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const PolicyVersion version = rpc::FromProto(latest.version());
    if (version < newest_) {
      const std::string cause =
          absl::StrCat("version ", newest_.str(), " was announced before, so this is a ",
                       "trainer that was replaced");
      log::Warning("weights_refused",
                   {{"job_id", options_.job}, {"version", version.str()}, {"cause", cause}});
      AddReport(version, held_, weights::v1::REPLICA_PHASE_REFUSED, cause, "");
      changed_.NotifyAll();
      return;
    }

    newest_ = version;
    if (!latest_ || latest_->manifest() != latest.manifest()) ForgetFailures();
    latest_ = std::move(latest);
    announced_ = Clock::Real()->Monotonic();
    changed_.NotifyAll();
  }

  // The download or activation of `latest_` has failed. Sets the time of the next try.
  void DelayRetry(absl::Duration at_least) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    not_before_ = clock_->Monotonic() + backoff_.Next(at_least);
  }
  void ForgetFailures() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    backoff_.Reset();
    not_before_ = absl::ZeroDuration();
  }

  // Waits until there is a version to download or a report to send. Returns true in the first case.
  bool AwaitWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!stopping_) {
      const bool wanted = ShouldDownload();
      const absl::Duration wait = not_before_ - clock_->Monotonic();
      if (wanted && wait <= absl::ZeroDuration()) return true;
      if (!reports_.empty()) return false;
      if (wanted) {
        changed_.WaitFor(&mu_, wait);
      } else {
        changed_.Wait(&mu_);
      }
    }
    return false;
  }

  // Whether `latest_` should be downloaded, now or when the back-off is over.
  bool ShouldDownload() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!latest_ || offered_) return false;
    const PolicyVersion version = rpc::FromProto(latest_->version());
    if (version == held_version_) return false;
    // During a replay the trainer publishes versions below the engine's. The engine keeps its
    // weights until `latest` has reached its version number again.
    const bool replay = latest_->has_hold_until() && held_version_.incarnation > 0 &&
                        held_version_.incarnation < version.incarnation;
    return !(replay && held_version_.number <= latest_->hold_until() &&
             version.number < held_version_.number);
  }

  // Downloads versions and sends reports. Runs on fetch_thread_.
  void FetchLoop() {
    while (true) {
      weights::v1::Latest latest;
      std::optional<Fingerprint> held;
      std::deque<weights::v1::ReportRequest> reports;
      std::shared_ptr<rpc::Channel> channel;
      bool wanted = false;
      absl::Duration announced;
      rpc::Cancel cancel;
      {
        MutexLock lock(&mu_);
        wanted = AwaitWork();
        if (stopping_) return;
        reports.swap(reports_);
        if (wanted) latest = *latest_;
        if (!from_nothing_) held = held_;
        channel = channel_;
        announced = announced_;
        if (wanted) download_cancel_ = &cancel;
      }
      // Download without the lock. SetSource() and the destructor can cancel the download through
      // download_cancel_.
      if (wanted) {
        absl::StatusOr<StagedWeights> staged = Download(latest, held, *channel, &cancel);

        // A download that SetSource() or the destructor ended is not a failure. The status does not
        // tell, because a trainer that shuts down answers CANCELLED too.
        bool failed = false;
        {
          MutexLock lock(&mu_);
          download_cancel_ = nullptr;
          offered_ = staged.ok();
          // What is held may be damaged, or an object on the way from it.
          if (absl::IsDataLoss(staged.status())) {
            from_nothing_ = true;
            AddReport(rpc::FromProto(latest.version()), held_, weights::v1::REPLICA_PHASE_REFUSED,
                      std::string(staged.status().message()), "");
          }
          failed = !staged.ok() && !cancel.triggered();
          const bool is_newest = latest_ && latest_->manifest() == latest.manifest();
          if (failed && is_newest) DelayRetry(DetailOf(staged.status()).retry_after);
        }

        if (staged.ok()) {
          staged->fetch = Clock::Real()->Monotonic() - announced;
          on_staged_(*std::move(staged));
        } else if (failed) {
          log::Warning("weights_fetch_failed", {{"job_id", options_.job},
                                                {"version", rpc::FromProto(latest.version()).str()},
                                                {"error", staged.status()}});
          if (options_.on_download_failed) options_.on_download_failed(staged.status());
        }
      }
      for (const weights::v1::ReportRequest& report : reports) {
        weights::v1::ReportResponse response;
        const absl::Status sent = rpc::Call(*channel, report, &response,
                                            {.deadline = absl::Seconds(2), .cancel = &stop_});
        // Reports are for display only. What the queue believes about this engine comes from Renew.
        if (!sent.ok()) log::Debug("weights_report_failed", {{"error", sent}});
      }
    }
  }

  absl::StatusOr<StagedWeights> Download(const weights::v1::Latest& latest,
                                         const std::optional<Fingerprint>& held,
                                         const rpc::Channel& channel, rpc::Cancel* cancel) {
    PublishedVersion version{.version = rpc::FromProto(latest.version()),
                             .manifest = latest.manifest()};
    SLUICE_ASSIGN_OR_RETURN(version.state, Fingerprint::FromBytes(latest.state()));
    return fetcher_.Fetch(channel, version, held, cancel);
  }

  const Options options_;
  Clock* const clock_;
  const WeightFetcher fetcher_;
  const OnStaged on_staged_;
  rpc::Cancel stop_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Address of the trainer; empty if there is none.
  std::string source_ ABSL_GUARDED_BY(mu_);
  // The channel to the newest source, and the stream and download that are open on it.
  std::shared_ptr<rpc::Channel> channel_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<rpc::ClientStream> stream_ ABSL_GUARDED_BY(mu_);
  // Cancels the download that is running; null if none is.
  rpc::Cancel* download_cancel_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::optional<weights::v1::Latest> latest_ ABSL_GUARDED_BY(mu_);
  // When `latest_` was announced, on the real monotonic clock.
  absl::Duration announced_ ABSL_GUARDED_BY(mu_);
  // The highest version that any trainer announced. If latest_ is set, it is this version, which
  // never falls.
  PolicyVersion newest_ ABSL_GUARDED_BY(mu_);
  // Back-off after failures with `latest_`, and the time of the next try on `clock_`.
  rpc::Backoff backoff_ ABSL_GUARDED_BY(mu_){rpc::BackoffOptions{}};
  absl::Duration not_before_ ABSL_GUARDED_BY(mu_);
  // What the engine holds.
  PolicyVersion held_version_ ABSL_GUARDED_BY(mu_);
  Fingerprint held_ ABSL_GUARDED_BY(mu_);
  // The engine has been offered a version and has not answered yet.
  bool offered_ ABSL_GUARDED_BY(mu_) = false;
  // It has refused a version since the last activation.
  bool refused_ ABSL_GUARDED_BY(mu_) = false;
  // Its weights are damaged, or a version that began at held_ was damaged or refused twice: the
  // next one begins at nothing.
  bool from_nothing_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<weights::v1::ReportRequest> reports_ ABSL_GUARDED_BY(mu_);

  std::thread watch_thread_, fetch_thread_;
};

WeightSubscriber::WeightSubscriber(Options options, absl::Span<const TensorSpec> layout,
                                   Fingerprint held, OnStaged on_staged)
    : impl_(std::make_unique<Impl>(std::move(options), layout, held, std::move(on_staged))) {}
WeightSubscriber::~WeightSubscriber() = default;
void WeightSubscriber::SetSource(const std::string& address) { impl_->SetSource(address); }
void WeightSubscriber::OnActivated(PolicyVersion version, Fingerprint state, absl::Duration pause) {
  impl_->OnActivated(version, state, pause);
}
void WeightSubscriber::OnRefused(PolicyVersion version, const std::string& cause,
                                 const std::string& tensor) {
  impl_->OnRefused(version, cause, tensor);
}
void WeightSubscriber::OnDamaged(PolicyVersion version, const std::string& cause,
                                 const std::string& tensor) {
  impl_->OnDamaged(version, cause, tensor);
}

}  // namespace sluice
