#include "common/weights/subscriber.h"

#include <deque>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "common/weights/chunk.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {
constexpr uint64_t kMaxManifest = 64 << 20;
}  // namespace

class WeightSubscriber::Impl {
 public:
  Impl(Options options, const TensorSet& layout, Fingerprint held, OnStaged on_staged)
      : options_(std::move(options)), specs_(layout.specs().begin(), layout.specs().end()), layout_id_(layout.layout_id()), on_staged_(std::move(on_staged)), held_state_(held) {
    watcher_ = std::thread([this] { WatchLoop(); });
    fetcher_ = std::thread([this] { FetchLoop(); });
  }
  ~Impl() {
    stop_.Trigger();
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      if (stream_ != nullptr) stream_->TryCancel();
      changed_.NotifyAll();
    }
    watcher_.join();
    fetcher_.join();
  }

  void SetSource(const std::string& address) {
    MutexLock lock(&mu_);
    if (source_ == address) return;
    source_ = address;
    if (stream_ != nullptr) stream_->TryCancel();
    changed_.NotifyAll();
  }

  void Activated(PolicyVersion version, Fingerprint state, absl::Duration pause) {
    MutexLock lock(&mu_);
    held_version_ = version;
    held_state_ = state;
    offered_ = false;
    AddReport(version, state, weights::v1::REPLICA_PHASE_ACTIVE, "", "");
    reports_.back().mutable_times()->insert({"pause", absl::ToDoubleSeconds(pause)});
    changed_.NotifyAll();
  }

  void Refused(PolicyVersion version, const std::string& cause, const std::string& tensor) {
    log::Error("weights_refused", {{"job_id", options_.job}, {"version", version.str()}, {"tensor", tensor}, {"cause", cause}});
    MutexLock lock(&mu_);
    offered_ = false;
    AddReport(version, held_state_, weights::v1::REPLICA_PHASE_REFUSED, cause, tensor);
    changed_.NotifyAll();
  }

 private:
  common::v1::Call MakeCall() const {
    common::v1::Call call;
    call.mutable_job()->set_job(options_.job);
    call.mutable_job()->set_worker(options_.worker);
    call.mutable_job()->set_incarnation(options_.incarnation);
    return call;
  }

  void AddReport(PolicyVersion version, const Fingerprint& state, weights::v1::ReplicaPhase phase, const std::string& cause, const std::string& tensor)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    weights::v1::ReportRequest report;
    *report.mutable_call() = MakeCall();
    report.set_replica(options_.worker);
    *report.mutable_version() = rpc::ToProto(version);
    report.set_phase(phase);
    report.set_state(state.bytes());
    report.set_cause(cause);
    if (!tensor.empty()) report.add_blame()->set_tensor(tensor);
    reports_.push_back(std::move(report));
  }

  // Keeps `latest_` true while there is a source.
  void WatchLoop() {
    rpc::Backoff backoff{rpc::BackoffOptions{}};
    while (true) {
      std::shared_ptr<rpc::ClientStream> stream;
      {
        MutexLock lock(&mu_);
        while (!stopping_ && source_.empty()) changed_.Wait(&mu_);
        if (stopping_) return;
        const auto channel = rpc::Connect(source_);
        if (!channel.ok()) {
          log::Error("weights_source", {{"job_id", options_.job}, {"error", channel.status()}});
          source_.clear();
          continue;
        }
        channel_ = *channel;
        weights::v1::WatchRequest request;
        *request.mutable_call() = MakeCall();
        request.set_policy(options_.policy);
        *request.mutable_held()->mutable_version() = rpc::ToProto(held_version_);
        stream = stream_ = std::make_shared<rpc::ClientStream>(*channel_, *weights::v1::WatchRequest::descriptor(), &stop_);
        stream->Write(request);
        stream->WritesDone();
      }
      weights::v1::Latest latest;
      while (stream->Read(&latest)) {
        backoff.Reset();
        if (!latest.has_version()) continue;  // A beat.
        MutexLock lock(&mu_);
        latest_ = latest;
        announced_ = Clock::Real()->Monotonic();
        changed_.NotifyAll();
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

  // What is to be staged next, if anything.
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!latest_ || offered_) return false;
    const PolicyVersion version = rpc::FromProto(latest_->version());
    if (version == held_version_) return false;
    // During a replay the engine keeps what it sampled ahead with, until `latest` has caught up with it.
    const bool replay = latest_->has_hold_until() && held_version_.incarnation > 0 && held_version_.incarnation < version.incarnation;
    return !(replay && held_version_.number <= latest_->hold_until() && version.number < held_version_.number);
  }

  void FetchLoop() {
    rpc::Backoff backoff{rpc::BackoffOptions{}};
    while (true) {
      weights::v1::Latest latest;
      Fingerprint held;
      std::deque<weights::v1::ReportRequest> reports;
      std::shared_ptr<rpc::Channel> channel;
      bool wanted = false;
      StagedWeights staged;
      absl::Duration announced;
      {
        MutexLock lock(&mu_);
        while (!stopping_ && !Wanted() && reports_.empty()) changed_.Wait(&mu_);
        if (stopping_) return;
        reports.swap(reports_);
        wanted = Wanted();
        if (wanted) latest = *latest_;
        held = held_state_;
        channel = channel_;
        announced = announced_;
      }
      if (wanted) {
        const absl::Status status = Stage(latest, held, *channel, &staged);
        if (status.ok()) {
          backoff.Reset();
          staged.fetch = Clock::Real()->Monotonic() - announced;
          {
            MutexLock lock(&mu_);
            offered_ = true;
          }
          on_staged_(std::move(staged));
        } else if (status.code() != absl::StatusCode::kCancelled) {
          log::Warning("weights_fetch_failed", {{"job_id", options_.job}, {"version", rpc::FromProto(latest.version()).str()}, {"error", status}});
          if (stop_.WaitFor(backoff.Next())) return;
        }
      }
      for (const weights::v1::ReportRequest& report : reports) {
        weights::v1::ReportResponse response;
        const absl::Status sent = rpc::Call(*channel, report, &response, {.deadline = absl::Seconds(2), .cancel = &stop_});
        if (!sent.ok()) log::Debug("weights_report_failed", {{"error", sent}});  // For people; the queue's Renew is what counts.
      }
    }
  }

  bool Overtaken(const weights::v1::Latest& latest) {
    MutexLock lock(&mu_);
    return stopping_ || (latest_ && latest_->manifest() != latest.manifest());
  }

  // CANCELLED: a newer version is out, or the subscriber stops.
  absl::Status Stage(const weights::v1::Latest& latest, const Fingerprint& held, const rpc::Channel& channel, StagedWeights* staged) {
    staged->version = rpc::FromProto(latest.version());
    staged->manifest = latest.manifest();
    SLUICE_ASSIGN_OR_RETURN(staged->state, Fingerprint::FromBytes(latest.state()));
    if (staged->state == held) return absl::OkStatus();  // A relabel.

    std::string bytes;
    SLUICE_RETURN_IF_ERROR(FetchObjects(channel, latest, {latest.manifest()}, [&](const std::string&, std::string object) {
      bytes = std::move(object);
      return absl::OkStatus();
    }));
    weights::v1::Manifest manifest;
    if (bytes.size() > kMaxManifest || !manifest.ParseFromString(bytes)) return absl::DataLossError("the manifest cannot be read");
    SLUICE_RETURN_IF_ERROR(CheckManifest(manifest, latest));

    SLUICE_ASSIGN_OR_RETURN(TensorSet tensors, TensorSet::Create(specs_));
    std::vector<std::string> chunks;
    for (const weights::v1::Chunk& chunk : manifest.chunks()) {
      if (chunk.codec() != 0) return absl::UnimplementedError(absl::StrCat("weight codec ", chunk.codec(), "; this build reads 0"));
      if (chunk.sha256().size() != 32 || chunk.wire_bytes() > kMaxChunkBytes + 4096) return absl::DataLossError("the manifest names a chunk that is none");
      chunks.push_back(chunk.sha256());
    }
    uint64_t written = 0;
    SLUICE_RETURN_IF_ERROR(FetchObjects(channel, latest, chunks, [&](const std::string&, std::string object) {
      staged->bytes += object.size();
      return DecodeFullChunk(object, &tensors, &written);
    }));
    uint64_t expected = 0;
    for (size_t i = 0; i < tensors.size(); ++i) expected += static_cast<uint64_t>(tensors.bytes(i));
    if (written != expected) return absl::DataLossError(absl::StrCat("the chunks of version ", staged->version.str(), " hold ", written, " bytes of ", expected));
    staged->tensors = std::make_shared<const TensorSet>(std::move(tensors));
    return absl::OkStatus();
  }

  absl::Status CheckManifest(const weights::v1::Manifest& manifest, const weights::v1::Latest& latest) const {
    const PolicyVersion version = rpc::FromProto(latest.version());
    if (manifest.job() != options_.job) return absl::DataLossError("the manifest is another job's");
    if (manifest.incarnation() != version.incarnation || manifest.version() != version.number || manifest.state() != latest.state()) {
      return absl::DataLossError(absl::StrCat("the manifest of ", manifest.incarnation(), ":", manifest.version(), " was announced as ", version.str()));
    }
    if (manifest.kind() != weights::v1::Manifest::KIND_FULL) return absl::UnimplementedError("this build applies full weights only");
    if (manifest.layout_id() != layout_id_) {
      return absl::InvalidArgumentError(absl::StrCat("version ", version.str(), " has the layout ", ToHex(manifest.layout_id()).substr(0, 16), ", this engine's model ", ToHex(layout_id_).substr(0, 16),
                                                     ": trainer and rollout were given different models"));
    }
    return absl::OkStatus();
  }

  // Gets whole objects in order and hands each over after its CRCs and its name, which is its SHA-256, were checked.
  absl::Status FetchObjects(const rpc::Channel& channel, const weights::v1::Latest& latest, const std::vector<std::string>& ids,
                            const std::function<absl::Status(const std::string& id, std::string object)>& take) {
    if (ids.empty()) return absl::OkStatus();
    weights::v1::FetchRequest request;
    *request.mutable_call() = MakeCall();
    for (const std::string& id : ids) request.add_objects()->set_id(id);
    rpc::ClientStream stream(channel, *weights::v1::FetchRequest::descriptor(), &stop_, absl::Seconds(60));
    stream.Write(request);
    stream.WritesDone();
    rpc::Frame frame;
    size_t next = 0;
    std::string object;
    while (next < ids.size() && stream.ReadFrame(&frame)) {
      if (Overtaken(latest)) return absl::CancelledError("overtaken");
      weights::v1::FetchHeader header;
      SLUICE_RETURN_IF_ERROR(frame.ParseHeader(&header));
      if (header.missing_size() > 0) return absl::NotFoundError(absl::StrCat("the trainer no longer has object ", ToHex(ids[next]).substr(0, 16)));
      if (header.index() != next || header.offset() != object.size()) return absl::DataLossError("objects came out of order");
      if (header.size() > kMaxManifest) return absl::ResourceExhaustedError(absl::StrCat("an object of ", header.size(), " bytes; the limit is ", kMaxManifest));
      const size_t at = object.size();
      object.resize(at + frame.payload_bytes());
      rpc::PayloadReader reader(frame);
      SLUICE_ASSIGN_OR_RETURN(const uint32_t crc, reader.Copy(frame.payload_bytes(), object.data() + at));
      if (crc != header.crc32c()) return Error(absl::StatusCode::kDataLoss, "BAD_CRC", absl::StrCat("object ", ToHex(ids[next]).substr(0, 16), " at byte ", at));
      if (object.size() < header.size()) continue;
      if (Sha256(object) != ids[next]) return Error(absl::StatusCode::kDataLoss, "BAD_DIGEST", absl::StrCat("object ", ToHex(ids[next]).substr(0, 16), " is not what its name says"));
      SLUICE_RETURN_IF_ERROR(take(ids[next], std::move(object)));
      object.clear();
      ++next;
    }
    if (next == ids.size()) return absl::OkStatus();
    const absl::Status end = stream.Finish();
    return end.ok() ? absl::UnavailableError("the stream ended early") : end;
  }

  const Options options_;
  const std::vector<TensorSpec> specs_;
  const std::string layout_id_;
  const OnStaged on_staged_;
  rpc::Cancel stop_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::string source_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<rpc::Channel> channel_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<rpc::ClientStream> stream_ ABSL_GUARDED_BY(mu_);
  std::optional<weights::v1::Latest> latest_ ABSL_GUARDED_BY(mu_);
  absl::Duration announced_ ABSL_GUARDED_BY(mu_);
  PolicyVersion held_version_ ABSL_GUARDED_BY(mu_);
  Fingerprint held_state_ ABSL_GUARDED_BY(mu_);
  bool offered_ ABSL_GUARDED_BY(mu_) = false;  // The engine has a staged version and has not answered.
  std::deque<weights::v1::ReportRequest> reports_ ABSL_GUARDED_BY(mu_);

  std::thread watcher_, fetcher_;
};

WeightSubscriber::WeightSubscriber(Options options, const TensorSet& layout, Fingerprint held, OnStaged on_staged)
    : impl_(std::make_unique<Impl>(std::move(options), layout, held, std::move(on_staged))) {}
WeightSubscriber::~WeightSubscriber() = default;
void WeightSubscriber::SetSource(const std::string& address) { impl_->SetSource(address); }
void WeightSubscriber::Activated(PolicyVersion version, Fingerprint state, absl::Duration pause) { impl_->Activated(version, state, pause); }
void WeightSubscriber::Refused(PolicyVersion version, const std::string& cause, const std::string& tensor) { impl_->Refused(version, cause, tensor); }

}  // namespace sluice
