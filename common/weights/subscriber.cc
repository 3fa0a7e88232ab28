#include "common/weights/subscriber.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "common/weights/convert.h"
#include "common/weights/fetcher.h"
#include "common/weights/file_transport.h"
#include "common/weights/holder_connector.h"
#include "common/weights/relay.h"
#include "common/weights/version_follower.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {

namespace {

// Announcements of relays are asked for when the trainer's stream has been broken, or silent, for
// this long. A trainer sends something every 10 s.
constexpr absl::Duration kBroken = absl::Seconds(1), kSilent = absl::Seconds(15);
// After this time another relay is asked: the first one may know less.
constexpr absl::Duration kRelayTurn = absl::Seconds(3), kRelayPause = absl::Milliseconds(100);
constexpr size_t kMostReports = 64;
// Time between two reports of a canary.
constexpr absl::Duration kHealthInterval = absl::Milliseconds(100);

uint64_t BytesOf(absl::Span<const TensorSpec> layout) {
  uint64_t bytes = 0;
  for (const TensorSpec& spec : layout)
    bytes += static_cast<uint64_t>(*NumElements(spec.shape)) * DTypeBytes(spec.dtype);
  return bytes;
}

absl::StatusOr<PublishedVersion> ParseLatest(const weights::v1::Latest& latest) {
  PublishedVersion announced{.version = rpc::FromProto(latest.version()),
                             .manifest = latest.manifest()};
  SLUICE_ASSIGN_OR_RETURN(announced.state, Fingerprint::FromBytes(latest.state()));
  if (latest.has_hold_until()) announced.hold_until = latest.hold_until();
  return announced;
}

}  // namespace

class WeightSubscriber::Impl {
 public:
  Impl(Options options, absl::Span<const TensorSpec> layout, Fingerprint held, OnStaged on_staged)
      : options_(std::move(options)),
        clock_(options_.clock == nullptr ? Clock::Real() : options_.clock),
        fetcher_(
            {.job = options_.job, .worker = options_.worker, .incarnation = options_.incarnation},
            layout),
        model_bytes_(BytesOf(layout)),
        on_staged_(std::move(on_staged)),
        connector_({.caller = fetcher_.caller(),
                    .shared_memory = options_.shared_memory,
                    .broadcast = options_.broadcast,
                    .ucx_devices = options_.ucx_devices,
                    .folder = options_.folder}),
        history_(options_.limits),
        follower_(held, options_.relay.get()) {
    watch_thread_ = std::thread([this] { WatchLoop(); });
    fetch_thread_ = std::thread([this] { FetchLoop(); });
    report_thread_ = std::thread([this] { ReportLoop(); });
    if (options_.relay != nullptr || options_.folder != nullptr)
      relay_watch_thread_ = std::thread([this] { RelayWatchLoop(); });
  }
  ~Impl() {
    stop_.Trigger();
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      CancelCalls();
      if (relay_stream_ != nullptr) relay_stream_->TryCancel();
      changed_.NotifyAll();
    }
    watch_thread_.join();
    fetch_thread_.join();
    report_thread_.join();
    if (relay_watch_thread_.joinable()) relay_watch_thread_.join();
  }

  void SetSource(const std::string& address) {
    MutexLock lock(&mu_);
    if (source_ == address) return;
    source_ = address;
    if (uses_chain() || options_.folder != nullptr) {
      // Others may have what the old source has announced, so what is to be followed stays.
      if (stream_ != nullptr) stream_->TryCancel();
      const auto wait = downloading_ == nullptr ? std::nullopt : downloading_->wait();
      // A download that waits for no object calls the trainer, or is about to.
      if (downloading_ != nullptr && (!wait || wait->holder == kOriginId))
        download_cancel_->Trigger();
      channel_.reset();
    } else {
      follower_.ForgetAnnouncements();
      CancelCalls();
    }
    follower_.ForgetFailures();
    changed_.NotifyAll();
  }

  void SetMembers(std::vector<RelayMember> members) {
    MutexLock lock(&mu_);
    chain_ = SortIntoChain(std::move(members), absl::StrCat(options_.job, " ", options_.policy));
    changed_.NotifyAll();
  }

  std::optional<ObjectFetcher::Wait> wait() const {
    MutexLock lock(&mu_);
    return downloading_ == nullptr ? std::nullopt : downloading_->wait();
  }

  std::optional<RoomWait> room_wait() const {
    MutexLock lock(&mu_);
    if (!waiting_ || !without_room_) return std::nullopt;
    return RoomWait{waiting_->version, *without_room_};
  }

  void OnRoom() {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
  }

  void OnActivated(PolicyVersion version, Fingerprint state, absl::Duration pause) {
    MutexLock lock(&mu_);
    follower_.OnActivated(version, state);
    active_times_ = {{"fetch", fetch_seconds_}, {"pause", absl::ToDoubleSeconds(pause)}};
    AddReport(version, state, weights::v1::REPLICA_PHASE_ACTIVE, holder_fault_, "", active_times_);
    changed_.NotifyAll();
  }

  void OnRefused(PolicyVersion version, const std::string& cause, const std::string& tensor) {
    log::Error("weights_refused", {{"job_id", options_.job},
                                   {"version", version.str()},
                                   {"tensor", tensor},
                                   {"cause", cause}});
    MutexLock lock(&mu_);
    follower_.OnRefused(version, clock_->Monotonic());
    AddReport(version, follower_.held(), weights::v1::REPLICA_PHASE_REFUSED, cause, tensor);
    changed_.NotifyAll();
  }

  void OnDamaged(PolicyVersion version, const std::string& cause, const std::string& tensor) {
    log::Error("weights_damaged", {{"job_id", options_.job},
                                   {"version", version.str()},
                                   {"tensor", tensor},
                                   {"cause", cause}});
    MutexLock lock(&mu_);
    follower_.OnDamaged();
    AddReport(version, Fingerprint(), weights::v1::REPLICA_PHASE_REFUSED, cause, tensor);
    changed_.NotifyAll();
  }

 private:
  // Ends the stream and the download that are open. The trainer may never answer.
  void CancelCalls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (stream_ != nullptr) stream_->TryCancel();
    if (download_cancel_ != nullptr) download_cancel_->Trigger();
  }

  bool uses_chain() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return options_.relay != nullptr && UsesChain(options_.fan_out, chain_.size(), model_bytes_);
  }

  // Adds a report that ReportLoop() will send. It replaces one that has not been sent, because only
  // the last one counts; but the trainer must hear of each refusal.
  void AddReport(PolicyVersion version, const Fingerprint& state, weights::v1::ReplicaPhase phase,
                 const std::string& cause, const std::string& tensor,
                 const std::map<std::string, double>& times = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    weights::v1::ReportRequest report;
    *report.mutable_call() = MakeCall(fetcher_.caller());
    report.set_replica(options_.worker);
    *report.mutable_version() = rpc::ToProto(version);
    report.set_phase(phase);
    report.set_state(state.bytes());
    report.set_cause(cause);
    report.set_parent(parent_);
    report.set_transport(transport_);
    report.set_transport_why(transport_why_);
    report.mutable_times()->insert(times.begin(), times.end());
    if (!tensor.empty()) report.add_blame()->set_tensor(tensor);
    const bool replaces =
        !reports_.empty() && reports_.back().phase() != weights::v1::REPLICA_PHASE_REFUSED;
    if (replaces || reports_.size() >= kMostReports) reports_.pop_back();
    reports_.push_back(std::move(report));
    changed_.NotifyAll();
  }

  // Whether the engine computes with the version that is on trial here.
  bool tries_candidate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return options_.health && follower_.tries_candidate();
  }

  // Opens a stream of announcements.
  std::shared_ptr<rpc::ClientStream> OpenWatch(const rpc::Channel& channel, absl::Duration deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    weights::v1::WatchRequest request;
    *request.mutable_call() = MakeCall(fetcher_.caller());
    request.set_policy(options_.policy);
    *request.mutable_held()->mutable_version() = rpc::ToProto(follower_.held_version());
    auto stream = std::make_shared<rpc::ClientStream>(
        channel, *weights::v1::WatchRequest::descriptor(), &stop_, deadline);
    stream->Write(request);
    stream->WritesDone();
    return stream;
  }

  // Hears what the trainer announces while there is a source. Runs on watch_thread_.
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
        const auto channel = rpc::Connect(source, {rpc::Role::kTrainer});
        if (!channel.ok()) {
          log::Error("weights_source", {{"job_id", options_.job}, {"error", channel.status()}});
          // Connect() fails only if the address itself cannot be used, so wait for another one.
          source_.clear();
          continue;
        }
        channel_ = *channel;
        stream = stream_ = OpenWatch(*channel_, absl::InfiniteDuration());
        changed_.NotifyAll();
      }

      weights::v1::Latest latest;
      while (stream->Read(&latest)) {
        backoff.Reset();
        MutexLock lock(&mu_);
        if (source_ != source) break;  // The address has changed meanwhile.
        origin_heard_ = Clock::Real()->Monotonic();
        origin_broken_ = absl::InfiniteDuration();
        if (relay_stream_ != nullptr) relay_stream_->TryCancel();
        // Without a version it is a beat: the stream is alive.
        if (latest.has_version()) HearTrainer(latest);
        else follower_.ForgetOthers();
      }

      const absl::Status end = stream->Finish();
      {
        MutexLock lock(&mu_);
        stream_.reset();
        origin_broken_ = std::min(origin_broken_, Clock::Real()->Monotonic());
        if (stopping_) return;
      }
      if (stop_.WaitFor(backoff.Next(DetailOf(end).retry_after))) return;
    }
  }

  // Whether the trainer announces nothing, so that relays are to be asked.
  bool OriginIsSilent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Duration now = Clock::Real()->Monotonic();
    return source_.empty() || now - origin_broken_ > kBroken || now - origin_heard_ > kSilent;
  }

  // Reads what is the newest in the folder, if there is one and the trainer is silent.
  void FollowFolder() {
    {
      MutexLock lock(&mu_);
      if (options_.folder == nullptr || !OriginIsSilent()) return;
    }
    const absl::StatusOr<weights::v1::FolderContents> contents = options_.folder->ReadContents();
    if (!contents.ok()) {
      log::Debug("weights_folder", {{"job_id", options_.job}, {"error", contents.status()}});
      return;
    }
    MutexLock lock(&mu_);
    if (OriginIsSilent()) HearOther("the folder", contents->latest());
  }

  // Asks the folder, and the other rollouts, one after the other, for the newest version while the
  // trainer is silent. Runs on relay_watch_thread_.
  void RelayWatchLoop() {
    for (size_t turn = 0;; ++turn) {
      std::shared_ptr<rpc::ClientStream> stream;
      std::string address;
      FollowFolder();
      {
        MutexLock lock(&mu_);
        std::shared_ptr<rpc::Channel> channel;
        while (!stopping_ && channel == nullptr) {
          std::vector<std::string> others;  // Their addresses.
          if (uses_chain() && OriginIsSilent()) others = ListOthers();
          if (others.empty() && options_.folder != nullptr) break;
          if (others.empty()) {
            changed_.WaitFor(&mu_, kBroken);
            continue;
          }
          address = others[turn % others.size()];
          auto connected = connector_.ChannelTo(address);
          if (connected.ok()) {
            channel = *std::move(connected);
          } else {
            log::Error("weights_source", {{"job_id", options_.job}, {"error", connected.status()}});
            break;  // To the next one, after a pause.
          }
        }
        if (stopping_) return;
        if (channel != nullptr) stream = relay_stream_ = OpenWatch(*channel, kRelayTurn);
      }
      if (stream == nullptr) {
        if (stop_.WaitFor(kBroken)) return;
        continue;
      }

      weights::v1::Latest latest;
      while (stream->Read(&latest)) {
        MutexLock lock(&mu_);
        if (!OriginIsSilent()) break;
        if (latest.has_version()) HearOther(address, latest);
      }
      stream->TryCancel();
      (void)stream->Finish();
      {
        MutexLock lock(&mu_);
        relay_stream_.reset();
      }
      if (stop_.WaitFor(kRelayPause)) return;
    }
  }

  // The addresses of the other rollouts, the nearest ones before this one first.
  std::vector<std::string> ListOthers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::string> others;
    for (const std::string& id :
         ListHolders(chain_, options_.worker, [](const std::string&) { return false; })) {
      for (const RelayMember& member : chain_) {
        if (member.id == id) others.push_back(member.address);
      }
    }
    return others;
  }

  void HearTrainer(const weights::v1::Latest& latest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::StatusOr<PublishedVersion> announced = ParseLatest(latest);
    if (!announced.ok()) return ReportUnreadable(announced.status());
    const PolicyVersion version = announced->version;
    const absl::Status heard =
        follower_.HearTrainer(*announced, latest.candidate(), clock_->Monotonic());
    if (!heard.ok()) {
      const std::string cause(heard.message());
      log::Warning("weights_refused",
                   {{"job_id", options_.job}, {"version", version.str()}, {"cause", cause}});
      AddReport(version, follower_.held(), weights::v1::REPLICA_PHASE_REFUSED, cause, "");
      return;
    }
    // If a new trainer has taken over, what the old one announced may be nowhere any more.
    if (downloading_ != nullptr && downloading_->version().incarnation < version.incarnation)
      download_cancel_->Trigger();
    changed_.NotifyAll();
  }

  // `speaker` is the address of a rollout, or the folder.
  void HearOther(const std::string& speaker, const weights::v1::Latest& latest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::StatusOr<PublishedVersion> announced = ParseLatest(latest);
    if (!announced.ok()) return ReportUnreadable(announced.status());
    follower_.HearOther(speaker, *announced, clock_->Monotonic());
    changed_.NotifyAll();
  }

  void ReportUnreadable(const absl::Status& error) const {
    log::Error("weights_announcement", {{"job_id", options_.job}, {"error", error}});
  }

  bool HasRoomFor(const StagedWeights& staged) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool relabel = staged.tensors == nullptr && staged.delta == nullptr;
    return relabel || !options_.has_room || options_.has_room();
  }

  // Waits until the engine has room for what waits, and returns that, or until there is a version
  // to download.
  std::optional<StagedWeights> AwaitWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!stopping_) {
      if (waiting_ && !follower_.MayOffer(&*waiting_)) DropWaiting();
      if (waiting_ && HasRoomFor(*waiting_)) return TakeWaiting();
      const bool has_holders = channel_ != nullptr || uses_chain() || options_.folder != nullptr;
      const std::optional<absl::Duration> next =
          has_holders ? follower_.next_download() : std::nullopt;
      if (!next.has_value()) {
        changed_.Wait(&mu_);
        continue;
      }
      const absl::Duration wait = *next - clock_->Monotonic();
      if (wait <= absl::ZeroDuration()) return std::nullopt;
      changed_.WaitFor(&mu_, wait);
    }
    return std::nullopt;
  }

  void DropWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    waiting_.reset();
    without_room_.reset();
    follower_.OnDropped();
  }

  StagedWeights TakeWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    StagedWeights staged = *std::exchange(waiting_, std::nullopt);
    staged.waited = Clock::Real()->Monotonic() - *std::exchange(without_room_, std::nullopt);
    follower_.OnOffered();
    return staged;
  }

  // The engine has no room for these weights, which take the place of those that wait.
  void Wait(StagedWeights staged) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (waiting_) staged.bytes += waiting_->bytes;
    follower_.OnNoRoom();
    waiting_ = std::move(staged);
    if (!without_room_) without_room_ = Clock::Real()->Monotonic();
  }

  // Downloads versions and hands them over. Runs on fetch_thread_, which alone changes waiting_.
  void FetchLoop() {
    while (true) {
      std::optional<StagedWeights> ready;
      VersionFollower::Download next;
      rpc::Cancel cancel;
      {
        MutexLock lock(&mu_);
        ready = AwaitWork();
        if (stopping_) return;
        if (!ready) {
          // Two whole versions would take twice the memory.
          if (waiting_ && waiting_->tensors != nullptr) DropWaiting();
          next = follower_.Begin();
          download_cancel_ = &cancel;
        }
      }
      if (ready) {
        on_staged_(*std::move(ready));
        continue;
      }
      for (const std::string& liar : next.liars)
        history_.AddFault(liar, HolderFault::kLied, Clock::Real()->Monotonic());

      // Download without the lock. SetSource() and the destructor can cancel the download through
      // download_cancel_.
      ObjectFetcher::Stats stats;
      bool relayed = false;
      absl::StatusOr<StagedWeights> staged = Download(next, &cancel, &stats, &relayed);
      if (options_.on_download_ended) options_.on_download_ended(stats);

      const PolicyVersion version = next.version.version;
      // A download that SetSource() or the destructor ended is not a failure. The status does not
      // tell, because a trainer that shuts down answers CANCELLED too.
      bool cancelled = false;
      {
        MutexLock lock(&mu_);
        download_cancel_ = nullptr;
        cancelled = cancel.triggered();
        if (staged.ok()) {
          staged->fetch = clock_->Monotonic() - next.announced;
          fetch_seconds_ = absl::ToDoubleSeconds(staged->fetch);
          parent_ = stats.parent;
          transport_ = stats.transport;
          transport_why_ = stats.why;
          holder_fault_ = stats.last_fault;
          follower_.OnStaged(next, stats.lister, relayed, &*staged);
          AddReport(version, follower_.held(), weights::v1::REPLICA_PHASE_STAGED, holder_fault_, "",
                    {{"fetch", fetch_seconds_}});
          if (!HasRoomFor(*staged)) {
            Wait(*std::move(staged));
            continue;
          }
          if (without_room_) staged->waited = Clock::Real()->Monotonic() - *without_room_;
          if (waiting_) DropWaiting();
        } else {
          follower_.OnFailed(next, staged.status(), cancelled,
                             DetailOf(staged.status()).retry_after, clock_->Monotonic());
        }
        if (absl::IsDataLoss(staged.status())) {
          AddReport(version, follower_.held(), weights::v1::REPLICA_PHASE_REFUSED,
                    std::string(staged.status().message()), "");
        }
      }

      if (staged.ok()) {
        on_staged_(*std::move(staged));
      } else if (!cancelled) {
        log::Warning(
            "weights_fetch_failed",
            {{"job_id", options_.job}, {"version", version.str()}, {"error", staged.status()}});
        if (options_.on_download_failed) options_.on_download_failed(staged.status());
      }
    }
  }

  // Sends reports. Runs on report_thread_.
  void ReportLoop() {
    while (true) {
      weights::v1::ReportRequest report;
      std::shared_ptr<rpc::Channel> channel;
      {
        MutexLock lock(&mu_);
        while (!stopping_ && (reports_.empty() || channel_ == nullptr)) {
          if (!tries_candidate() || channel_ == nullptr) {
            changed_.Wait(&mu_);
          } else if (!changed_.WaitFor(&mu_, kHealthInterval) && reports_.empty() &&
                     tries_candidate()) {
            AddReport(follower_.held_version(), follower_.held(), weights::v1::REPLICA_PHASE_ACTIVE,
                      holder_fault_, "", active_times_);
            *reports_.back().mutable_health() = ToProto(options_.health());
          }
        }
        if (stopping_) return;
        report = std::move(reports_.front());
        reports_.pop_front();
        channel = channel_;
      }
      weights::v1::ReportResponse response;
      const absl::Status sent =
          rpc::Call(*channel, report, &response, {.deadline = absl::Seconds(2), .cancel = &stop_});
      // Reports are for display only. What the queue believes about this engine comes from Renew.
      if (!sent.ok()) log::Debug("weights_report_failed", {{"error", sent}});
    }
  }

  // Sets *relayed if the relay holds the version then.
  absl::StatusOr<StagedWeights> Download(const VersionFollower::Download& next, rpc::Cancel* cancel,
                                         ObjectFetcher::Stats* stats, bool* relayed) {
    const PolicyVersion version = next.version.version;
    ObjectFetcher::Options options{.caller = fetcher_.caller(),
                                   .version = version,
                                   .hearsay = next.speaker.has_value(),
                                   .history = &history_,
                                   .cancel = cancel};
    HolderConnector::Known known;
    {
      MutexLock lock(&mu_);
      known.trainer = channel_;
      if (channel_ != nullptr) known.trainer_address = source_;
      if (uses_chain()) {
        options.relay = options_.relay.get();
        known.chain = chain_;
      }
    }
    options.holders = connector_.Connect(known, history_, Clock::Real()->Monotonic());
    {
      MutexLock lock(&mu_);
      if (options.holders.empty()) {
        return absl::UnavailableError(
            absl::StrCat("nobody serves version ", version.str(),
                         " now: the trainer's address is not known, and there is no other rollout; "
                         "it is tried again"));
      }
      parent_ = options.holders.front().id;
      transport_ = std::string(options.holders.front().transport->caps().name);
      transport_why_ = options.holders.front().why;
      AddReport(version, follower_.held(), weights::v1::REPLICA_PHASE_FETCHING, "", "");
    }
    if (options.relay == nullptr && options_.relay != nullptr) options_.relay->Clear();

    ObjectFetcher objects(std::move(options));
    {
      MutexLock lock(&mu_);
      downloading_ = &objects;
    }
    absl::StatusOr<StagedWeights> staged = fetcher_.Fetch(&objects, next.version, next.from);
    MutexLock lock(&mu_);
    downloading_ = nullptr;
    *stats = objects.stats();
    // Of a version for which nothing had to be fetched, the relay has nothing.
    *relayed = objects.relay() != nullptr && staged.ok() &&
               (staged->tensors != nullptr || staged->delta != nullptr);
    return staged;
  }

  const Options options_;
  Clock* const clock_;
  const WeightFetcher fetcher_;
  const uint64_t model_bytes_;
  const OnStaged on_staged_;
  rpc::Cancel stop_;
  HolderConnector connector_;
  HolderHistory history_;  // Used by fetch_thread_.

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Address of the trainer; empty if there is none.
  std::string source_ ABSL_GUARDED_BY(mu_);
  // The channel to the newest source, and the stream and download that are open on it.
  std::shared_ptr<rpc::Channel> channel_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<rpc::ClientStream> stream_ ABSL_GUARDED_BY(mu_);
  // Cancels the download that is running; null if none is.
  rpc::Cancel* download_cancel_ ABSL_GUARDED_BY(mu_) = nullptr;
  // The rollouts of the job in their order.
  std::vector<RelayMember> chain_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<rpc::ClientStream> relay_stream_ ABSL_GUARDED_BY(mu_);
  // On the real monotonic clock: when the trainer's stream last sent something, and since when it
  // is broken.
  absl::Duration origin_heard_ ABSL_GUARDED_BY(mu_) = Clock::Real()->Monotonic();
  absl::Duration origin_broken_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  // The download that is running, or null.
  ObjectFetcher* downloading_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::string parent_ ABSL_GUARDED_BY(mu_);  // From whom this rollout fetches, or fetched last.
  std::string transport_ ABSL_GUARDED_BY(mu_), transport_why_ ABSL_GUARDED_BY(mu_);  // And how.
  // Which holder was left in the last fetch, and why; else empty.
  std::string holder_fault_ ABSL_GUARDED_BY(mu_);
  double fetch_seconds_ ABSL_GUARDED_BY(mu_) = 0;                    // Of the version offered last.
  std::map<std::string, double> active_times_ ABSL_GUARDED_BY(mu_);  // Of the one activated last.
  VersionFollower follower_ ABSL_GUARDED_BY(mu_);
  // What the engine has had no room for, and since when something has waited, on the real monotonic
  // clock. Both are set, or neither.
  std::optional<StagedWeights> waiting_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Duration> without_room_ ABSL_GUARDED_BY(mu_);
  std::deque<weights::v1::ReportRequest> reports_ ABSL_GUARDED_BY(mu_);

  std::thread watch_thread_, relay_watch_thread_, fetch_thread_, report_thread_;
};

WeightSubscriber::WeightSubscriber(Options options, absl::Span<const TensorSpec> layout,
                                   Fingerprint held, OnStaged on_staged)
    : impl_(std::make_unique<Impl>(std::move(options), layout, held, std::move(on_staged))) {}
WeightSubscriber::~WeightSubscriber() = default;
void WeightSubscriber::SetSource(const std::string& address) { impl_->SetSource(address); }
void WeightSubscriber::SetMembers(std::vector<RelayMember> members) {
  impl_->SetMembers(std::move(members));
}
std::optional<ObjectFetcher::Wait> WeightSubscriber::wait() const { return impl_->wait(); }
std::optional<WeightSubscriber::RoomWait> WeightSubscriber::room_wait() const {
  return impl_->room_wait();
}
void WeightSubscriber::OnRoom() { impl_->OnRoom(); }
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
