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
#include "common/weights/grpc_transport.h"
#include "common/weights/holder_plan.h"
#include "common/weights/relay.h"
#include "common/weights/shm_transport.h"
#include "common/weights/ucx_memory.h"
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
        ucx_(options_.ucx_devices.has_value() && options_.ucx_devices->ok()
                 ? std::make_unique<UcxMemory>(**options_.ucx_devices)
                 : nullptr),
        history_(options_.limits),
        held_(held) {
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
      // Others may have what the old source has announced, so `latest_` stays.
      if (stream_ != nullptr) stream_->TryCancel();
      const auto wait = downloading_ == nullptr ? std::nullopt : downloading_->wait();
      // A download that waits for no object calls the trainer, or is about to.
      if (downloading_ != nullptr && (!wait || wait->holder == kOriginId))
        download_cancel_->Trigger();
      channel_.reset();
    } else {
      latest_.reset();  // It was announced by the old source.
      origin_latest_.reset();
      CancelCalls();
    }
    ForgetFailures();
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
    held_version_ = version;
    held_ = state;
    from_nothing_ = refused_ = false;
    offered_ = false;
    ForgetFailures();
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
    offered_ = false;
    if (!offered_lister_.empty()) {
      // A delta that a relay listed proves nothing against `held_` or what the trainer lists.
      liars_.push_back(offered_lister_);
    } else if (std::exchange(refused_, true)) {
      // What came may have been damaged here, after its check. If not, the way from `held_` is
      // wrong.
      from_nothing_ = true;
    }
    if (latest_ && latest_->version == version) DelayRetry(absl::ZeroDuration());
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
    return options_.health && candidate_.has_value() && held_version_ == *candidate_;
  }

  // Opens a stream of announcements.
  std::shared_ptr<rpc::ClientStream> OpenWatch(const rpc::Channel& channel, absl::Duration deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    weights::v1::WatchRequest request;
    *request.mutable_call() = MakeCall(fetcher_.caller());
    request.set_policy(options_.policy);
    *request.mutable_held()->mutable_version() = rpc::ToProto(held_version_);
    auto stream = std::make_shared<rpc::ClientStream>(
        channel, *weights::v1::WatchRequest::descriptor(), &stop_, deadline);
    stream->Write(request);
    stream->WritesDone();
    return stream;
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
        if (latest.has_version()) FollowAnnouncement(latest, /*from_relay=*/false);
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
    if (OriginIsSilent()) FollowAnnouncement(contents->latest(), /*from_relay=*/true);
  }

  // Asks the folder, and the other rollouts, one after the other, for the newest version while the
  // trainer is silent. Runs on relay_watch_thread_.
  void RelayWatchLoop() {
    for (size_t turn = 0;; ++turn) {
      std::shared_ptr<rpc::ClientStream> stream;
      FollowFolder();
      {
        MutexLock lock(&mu_);
        std::shared_ptr<rpc::Channel> channel;
        while (!stopping_ && channel == nullptr) {
          std::vector<ObjectFetcher::Holder> others;
          if (uses_chain() && OriginIsSilent())
            others =
                HoldersOf(chain_, /*origin=*/nullptr, [](const std::string&) { return false; });
          if (others.empty() && options_.folder != nullptr) break;
          if (others.empty()) changed_.WaitFor(&mu_, kBroken);
          else channel = channels_.at(AddressOf(others[turn % others.size()].id));
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
        if (latest.has_version()) FollowAnnouncement(latest, /*from_relay=*/true);
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

  const std::string& AddressOf(const std::string& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = std::find_if(chain_.begin(), chain_.end(),
                                 [&](const RelayMember& other) { return other.id == member; });
    SLUICE_CHECK(it != chain_.end());
    return it->address;
  }

  ObjectFetcher::Holder MakeCaller(const std::string& id, const rpc::Channel* channel) const {
    return {.id = id,
            .transport = std::make_shared<GrpcTransport>(channel, fetcher_.caller()),
            .channel = channel,
            .why = ""};
  }

  // The holders of a version, in the order in which they are called, with channels that live as
  // long as channels_. `origin` is null if the trainer is not known.
  std::vector<ObjectFetcher::Holder> HoldersOf(
      absl::Span<const RelayMember> chain, const rpc::Channel* origin,
      const std::function<bool(const std::string& id)>& is_avoided)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<ObjectFetcher::Holder> holders;
    for (const std::string& id : ListHolders(chain, options_.worker, is_avoided)) {
      if (id == kOriginId) {
        if (origin != nullptr) holders.push_back(MakeCaller(id, origin));
        continue;
      }
      std::shared_ptr<rpc::Channel>& channel = channels_[AddressOf(id)];
      if (channel == nullptr) {
        auto made = rpc::Connect(AddressOf(id), {rpc::Role::kRollout});
        if (!made.ok()) {
          log::Error("weights_source", {{"job_id", options_.job}, {"error", made.status()}});
          channels_.erase(AddressOf(id));
          continue;
        }
        channel = *std::move(made);
      }
      holders.push_back(MakeCaller(id, channel.get()));
    }
    return holders;
  }

  // Makes an announcement the one to follow, unless a newer version was announced before. The
  // trainer's word replaces that of a relay. A relay's word is taken only for what is newer than
  // all that the trainer announced, of the same trainer, and for other weights than those held:
  // that the same weights have another version now, nothing can prove.
  void FollowAnnouncement(const weights::v1::Latest& latest, bool from_relay)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::StatusOr<Fingerprint> state = Fingerprint::FromBytes(latest.state());
    if (!state.ok()) {
      log::Error("weights_announcement", {{"job_id", options_.job}, {"error", state.status()}});
      return;
    }
    PublishedVersion announced{.version = rpc::FromProto(latest.version()),
                               .manifest = latest.manifest(),
                               .state = *state};
    if (latest.has_hold_until()) announced.hold_until = latest.hold_until();
    const PolicyVersion version = announced.version;
    if (from_relay) {
      const bool is_newer = version > newest_ && (!latest_ || version > latest_->version);
      const bool other_trainer =
          newest_ != PolicyVersion() && version.incarnation != newest_.incarnation;
      if (!is_newer || other_trainer || (*state == held_ && !from_nothing_)) return;
    }
    if (version < newest_) {
      const std::string cause =
          absl::StrCat("version ", newest_.str(), " was announced before, so this is a ",
                       "trainer that was replaced");
      log::Warning("weights_refused",
                   {{"job_id", options_.job}, {"version", version.str()}, {"cause", cause}});
      AddReport(version, held_, weights::v1::REPLICA_PHASE_REFUSED, cause, "");
      return;
    }

    if (!from_relay) {
      newest_ = version;
      origin_latest_ = announced;
      candidate_.reset();
      if (latest.candidate()) candidate_ = version;
      else if (untold_ == announced) options_.relay->SetLatest(*std::exchange(untold_, {}));
      // If a new trainer has taken over, what the old one announced may be nowhere any more.
      if (downloading_ != nullptr && downloading_->version().incarnation < version.incarnation)
        download_cancel_->Trigger();
    }
    if (!latest_ || latest_->manifest != announced.manifest) {
      ForgetFailures();
      announced_ = Clock::Real()->Monotonic();
    }
    latest_ = announced;
    changed_.NotifyAll();
  }

  // Whether only a relay announced `latest_`.
  bool is_hearsay() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return latest_.has_value() && latest_ != origin_latest_;
  }

  // The download or activation of `latest_` has failed. Sets the time of the next try.
  void DelayRetry(absl::Duration at_least) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    not_before_ = clock_->Monotonic() + backoff_.Next(at_least);
  }
  void ForgetFailures() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    backoff_.Reset();
    not_before_ = absl::ZeroDuration();
  }

  // Whether the engine may take what waits for it.
  bool CanHandOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!waiting_ || offered_) return false;
    const bool relabel = waiting_->tensors == nullptr && waiting_->delta == nullptr;
    return relabel || !options_.has_room || options_.has_room();
  }

  // Drops what waits for room if the engine must not take it any more: a new trainer has taken
  // over, the version was on trial and is not any more, or it begins at weights that are damaged.
  void DropOutdated() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!waiting_) return;
    if (latest_ && latest_->version == waiting_->version && candidate_ != waiting_->version)
      waiting_->candidate = false;  // It was promoted.
    if (waiting_->version.incarnation < newest_.incarnation ||
        (waiting_->candidate && candidate_ != waiting_->version) ||
        (waiting_->delta != nullptr && from_nothing_))
      waiting_.reset();
  }

  // Waits until there is a version to hand over or to download.
  void AwaitWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!stopping_) {
      DropOutdated();
      if (CanHandOver()) return;
      if (!waiting_) without_room_.reset();
      else if (!offered_ && !without_room_) without_room_ = Clock::Real()->Monotonic();
      const bool wanted = ShouldDownload();
      const absl::Duration wait = not_before_ - clock_->Monotonic();
      if (wanted && wait <= absl::ZeroDuration()) return;
      if (wanted) {
        changed_.WaitFor(&mu_, wait);
      } else {
        changed_.Wait(&mu_);
      }
    }
  }

  // Whether `latest_` should be downloaded, now or when the back-off is over.
  bool ShouldDownload() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!latest_ || offered_) return false;
    if (waiting_ && waiting_->version == latest_->version) return false;
    if (channel_ == nullptr && !uses_chain() && options_.folder == nullptr) return false;
    const PolicyVersion version = latest_->version;
    if (version == held_version_) return false;
    // What is held may have changed since FollowAnnouncement().
    if (is_hearsay() && latest_->state == held_ && !from_nothing_) return false;
    // During a replay the trainer publishes versions below the engine's. The engine keeps its
    // weights until `latest` has reached its version number again.
    const bool replay = latest_->hold_until.has_value() && held_version_.incarnation > 0 &&
                        held_version_.incarnation < version.incarnation;
    return !(replay && held_version_.number <= *latest_->hold_until &&
             version.number < held_version_.number);
  }

  StagedWeights TakeWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    StagedWeights staged = *std::exchange(waiting_, std::nullopt);
    if (without_room_) staged.waited = Clock::Real()->Monotonic() - *without_room_;
    without_room_.reset();
    offered_ = true;
    return staged;
  }

  // Downloads versions and hands them over. Runs on fetch_thread_, which alone changes waiting_.
  void FetchLoop() {
    while (true) {
      std::optional<StagedWeights> ready;
      PublishedVersion latest;
      std::optional<Fingerprint> held;
      absl::Duration announced;
      rpc::Cancel cancel;
      {
        MutexLock lock(&mu_);
        AwaitWork();
        if (stopping_) return;
        if (CanHandOver()) {
          ready = TakeWaiting();
        } else {
          // Two whole versions would take twice the memory.
          if (waiting_ && waiting_->tensors != nullptr) waiting_.reset();
          latest = *latest_;
          untold_.reset();
          if (!from_nothing_) held = held_;
          announced = announced_;
          download_cancel_ = &cancel;
          for (const std::string& liar : std::exchange(liars_, {}))
            history_.AddFault(liar, HolderFault::kLied, Clock::Real()->Monotonic());
        }
      }
      if (ready) {
        on_staged_(*std::move(ready));
        continue;
      }

      // Download without the lock. SetSource() and the destructor can cancel the download through
      // download_cancel_.
      ObjectFetcher::Stats stats;
      bool relays = false;
      absl::StatusOr<StagedWeights> staged = Download(latest, held, &cancel, &stats, &relays);
      if (options_.on_download_ended) options_.on_download_ended(stats);

      // A download that SetSource() or the destructor ended is not a failure. The status does not
      // tell, because a trainer that shuts down answers CANCELLED too.
      bool failed = false, tells_relay = false;
      {
        MutexLock lock(&mu_);
        download_cancel_ = nullptr;
        if (staged.ok()) {
          staged->fetch = Clock::Real()->Monotonic() - announced;
          fetch_seconds_ = absl::ToDoubleSeconds(staged->fetch);
          parent_ = stats.parent;
          transport_ = stats.transport;
          transport_why_ = stats.why;
          holder_fault_ = stats.last_fault;
          offered_lister_ = staged->delta != nullptr ? stats.lister : "";
          AddReport(latest.version, held_, weights::v1::REPLICA_PHASE_STAGED, holder_fault_, "",
                    {{"fetch", fetch_seconds_}});
          staged->candidate = candidate_ == latest.version;
          if (relays && staged->candidate) untold_ = latest;
          tells_relay = relays && !staged->candidate;
          if (waiting_) staged->bytes += waiting_->bytes;
          waiting_ = *std::move(staged);
        }
        if (absl::IsDataLoss(staged.status())) {
          if (ReasonOf(staged.status()) == "WRONG_PATH") from_nothing_ = true;
          AddReport(latest.version, held_, weights::v1::REPLICA_PHASE_REFUSED,
                    std::string(staged.status().message()), "");
        }
        failed = !staged.ok() && !cancel.triggered();
        const bool is_newest = latest_ && latest_->manifest == latest.manifest;
        if (failed && is_newest) {
          DelayRetry(DetailOf(staged.status()).retry_after);
          // Perhaps nobody has it. Were it kept, what others announce would not be heard.
          if (is_hearsay()) latest_ = origin_latest_;
        }
      }

      if (tells_relay) options_.relay->SetLatest(latest);
      if (failed) {
        log::Warning("weights_fetch_failed", {{"job_id", options_.job},
                                              {"version", latest.version.str()},
                                              {"error", staged.status()}});
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
            AddReport(held_version_, held_, weights::v1::REPLICA_PHASE_ACTIVE, holder_fault_, "",
                      active_times_);
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

  // Says whom to ask by which transport: those who can be called, what this host offers, and the
  // trainer `origin`, which may be null, for a broadcast.
  std::vector<ObjectFetcher::Holder> ChooseTransports(std::vector<ObjectFetcher::Holder> callable,
                                                      const std::vector<RelayMember>& upstream,
                                                      std::shared_ptr<rpc::Channel> origin) {
    std::map<std::string, ObjectFetcher::Holder> calls;
    std::shared_ptr<Transport> memory;  // Of the one that was reached last.
    HolderFacts facts{.shared_memory = options_.shared_memory,
                      .broadcast = options_.broadcast.has_value() && origin != nullptr,
                      .folder = options_.folder != nullptr};
    if (options_.ucx_devices.has_value()) facts.ucx = options_.ucx_devices->status();
    for (ObjectFetcher::Holder& holder : callable) {
      facts.holders.push_back(holder.id);
      calls[holder.id] = std::move(holder);
    }
    std::map<std::string, std::string> addresses;
    for (const RelayMember& member : upstream) {
      facts.upstream.push_back(member.id);
      addresses[member.id] = member.address;
    }
    facts.reach_memory = [&](const std::string& id) -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(memory, ShmTransport::Connect(addresses.at(id), fetcher_.caller()));
      return absl::OkStatus();
    };
    facts.is_avoided = [this, now = Clock::Real()->Monotonic()](const std::string& key) {
      return history_.IsAvoided(key, now);
    };

    std::vector<ObjectFetcher::Holder> holders;
    for (PlannedHolder& planned : PlanHolders(facts)) {
      ObjectFetcher::Holder holder{.id = planned.id};
      if (planned.transport->same_host) holder.transport = memory;
      else if (planned.transport->broadcasts)
        holder.transport =
            std::make_shared<BroadcastTransport>(origin, fetcher_.caller(), *options_.broadcast);
      else if (planned.transport->needs_folder) holder.transport = options_.folder;
      else if (planned.transport->reads_memory)
        holder.transport = std::make_shared<GrpcTransport>(calls.at(planned.id).channel,
                                                           fetcher_.caller(), ucx_.get());
      else holder = calls.at(planned.id);
      holder.why = std::move(planned.why);
      holders.push_back(std::move(holder));
    }
    return holders;
  }

  // Sets *relays if the relay holds the version then.
  absl::StatusOr<StagedWeights> Download(const PublishedVersion& version,
                                         const std::optional<Fingerprint>& held,
                                         rpc::Cancel* cancel, ObjectFetcher::Stats* stats,
                                         bool* relays) {
    ObjectFetcher::Options options{.caller = fetcher_.caller(),
                                   .version = version.version,
                                   .history = &history_,
                                   .cancel = cancel};
    std::shared_ptr<rpc::Channel> origin;  // Lives as long as the download.
    std::vector<ObjectFetcher::Holder> callable;
    std::vector<RelayMember> upstream;  // See HolderFacts.
    {
      MutexLock lock(&mu_);
      origin = channel_;
      options.hearsay = version != origin_latest_;
      if (origin != nullptr && !source_.empty())
        upstream.push_back({std::string(kOriginId), source_});
      if (uses_chain()) {
        const absl::Duration now = Clock::Real()->Monotonic();
        options.relay = options_.relay.get();
        callable = HoldersOf(chain_, origin.get(),
                             [&](const std::string& id) { return history_.IsAvoided(id, now); });
        for (const RelayMember& member : chain_) {
          if (member.id == options_.worker) break;
          upstream.push_back(member);
        }
      } else if (origin != nullptr) {
        callable.push_back(MakeCaller(std::string(kOriginId), origin.get()));
      }
    }
    options.holders = ChooseTransports(std::move(callable), upstream, origin);
    {
      MutexLock lock(&mu_);
      if (options.holders.empty()) {
        return absl::UnavailableError(
            absl::StrCat("nobody serves version ", version.version.str(),
                         " now: the trainer's address is not known, and there is no other rollout; "
                         "it is tried again"));
      }
      parent_ = options.holders.front().id;
      transport_ = std::string(options.holders.front().transport->caps().name);
      transport_why_ = options.holders.front().why;
      AddReport(version.version, held_, weights::v1::REPLICA_PHASE_FETCHING, "", "");
    }
    if (options.relay == nullptr && options_.relay != nullptr) options_.relay->Clear();

    ObjectFetcher objects(std::move(options));
    {
      MutexLock lock(&mu_);
      downloading_ = &objects;
    }
    absl::StatusOr<StagedWeights> staged = fetcher_.Fetch(&objects, version, held);
    MutexLock lock(&mu_);
    downloading_ = nullptr;
    *stats = objects.stats();
    // Of a version for which nothing had to be fetched, the relay has nothing.
    *relays = objects.relay() != nullptr && staged.ok() &&
              (staged->tensors != nullptr || staged->delta != nullptr);
    return staged;
  }

  const Options options_;
  Clock* const clock_;
  const WeightFetcher fetcher_;
  const uint64_t model_bytes_;
  const OnStaged on_staged_;
  rpc::Cancel stop_;
  const std::unique_ptr<UcxMemory> ucx_;  // Used by fetch_thread_. May be null.
  HolderHistory history_;                 // Used by fetch_thread_.

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
  // Those of relays, by address. They live as long as this object.
  std::map<std::string, std::shared_ptr<rpc::Channel>> channels_ ABSL_GUARDED_BY(mu_);
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
  // The announcement to follow, and the last one of the trainer.
  std::optional<PublishedVersion> latest_ ABSL_GUARDED_BY(mu_), origin_latest_ ABSL_GUARDED_BY(mu_);
  // The version that the trainer announced last, if it is on trial here.
  std::optional<PolicyVersion> candidate_ ABSL_GUARDED_BY(mu_);
  // The relay holds this version, which was on trial when it came, and has not named it to others.
  std::optional<PublishedVersion> untold_ ABSL_GUARDED_BY(mu_);
  // When `latest_` was announced, on the real monotonic clock.
  absl::Duration announced_ ABSL_GUARDED_BY(mu_);
  // The highest version that any trainer announced, which never falls. If latest_ is set, it is
  // this version, or a higher one that a relay announced while the trainer was silent.
  PolicyVersion newest_ ABSL_GUARDED_BY(mu_);
  // Back-off after failures with `latest_`, and the time of the next try on `clock_`.
  rpc::Backoff backoff_ ABSL_GUARDED_BY(mu_){rpc::BackoffOptions{}};
  absl::Duration not_before_ ABSL_GUARDED_BY(mu_);
  // What the engine holds.
  PolicyVersion held_version_ ABSL_GUARDED_BY(mu_);
  Fingerprint held_ ABSL_GUARDED_BY(mu_);
  // What was downloaded and is to be handed over, and since when the engine has had no room for it,
  // on the real monotonic clock.
  std::optional<StagedWeights> waiting_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Duration> without_room_ ABSL_GUARDED_BY(mu_);
  // The engine has been offered a version and has not answered yet.
  bool offered_ ABSL_GUARDED_BY(mu_) = false;
  // The relay that listed the delta which was offered last; empty: it was the trainer.
  std::string offered_lister_ ABSL_GUARDED_BY(mu_);
  // Relays whose lists led to what the engine refused. They are to go into history_.
  std::vector<std::string> liars_ ABSL_GUARDED_BY(mu_);
  // It has refused a version since the last activation.
  bool refused_ ABSL_GUARDED_BY(mu_) = false;
  // Its weights are damaged, or a version that began at held_ was damaged or refused twice: the
  // next one begins at nothing.
  bool from_nothing_ ABSL_GUARDED_BY(mu_) = false;
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
