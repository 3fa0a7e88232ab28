#include "services/queue/program.h"

#include <grpcpp/impl/codegen/service_type.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/daemon/admin_service.h"
#include "common/log/log.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::queue {
namespace {
constexpr char kMirrorFlag[] = "--mirror", kMirrorPasswordFlag[] = "--mirror-password-file",
               kMirrorCaFlag[] = "--mirror-ca";
constexpr char kMemoryFlag[] = "--memory", kNoSharedMemoryFlag[] = "--no-shared-memory";
constexpr char kSegmentFlag[] = "--log-segment-bytes", kSnapshotFlag[] = "--log-snapshot-bytes";
constexpr char kMirrorPasswordVariable[] = "SLUICE_MIRROR_PASSWORD";

// Makes the ledger mirror. Null if none is asked for.
absl::StatusOr<std::shared_ptr<LedgerMirror>> MakeMirror(const daemon::Host& host) {
  const redis::EndpointFlags flags = {.url = host.flags->OwnFlag(kMirrorFlag),
                                      .password_file = host.flags->OwnFlag(kMirrorPasswordFlag),
                                      .password_variable = kMirrorPasswordVariable,
                                      .ca_file = host.flags->OwnFlag(kMirrorCaFlag)};
  if (flags.url.empty()) {
    if (flags.password_file.empty() && flags.ca_file.empty()) return nullptr;
    return absl::InvalidArgumentError(
        absl::StrCat(flags.ca_file.empty() ? kMirrorPasswordFlag : kMirrorCaFlag,
                     " is given without ", kMirrorFlag, ", which names the Redis"));
  }
  absl::StatusOr<redis::Endpoint> endpoint = redis::MakeEndpoint(flags);
  if (!endpoint.ok()) return Annotate(endpoint.status(), kMirrorFlag);

  const auto mirror =
      std::make_shared<LedgerMirror>(LedgerMirror::Options{.redis = *std::move(endpoint)});
  const metrics::Gauge connected = host.metrics->AddGauge(
      "sluice_queue_mirror_connected", "1 while the ledger mirror is connected to Redis.");
  const metrics::Gauge lag = host.metrics->AddGauge(
      "sluice_queue_mirror_lag_entries", "Entries of ledgers that are not in Redis yet.");
  const metrics::Gauge dropped = host.metrics->AddGauge(
      "sluice_queue_mirror_dropped_entries",
      "Entries of ledgers given up so far; later entries include their changes.");
  host.metrics->BeforeCollect([=] {
    const LedgerMirror::State state = mirror->state();
    connected.Set(state.connected ? 1 : 0);
    lag.Set(static_cast<double>(state.lag));
    dropped.Set(static_cast<double>(state.dropped));
  });
  return mirror;
}

// The incarnation of a queue without a controller. It is counted in a file of the data directory,
// and rises by one at each start.
absl::StatusOr<int64_t> NextIncarnation(const std::string& data_dir) {
  if (data_dir.empty()) return 1;
  const std::string path = absl::StrCat(data_dir, "/incarnation");
  int64_t incarnation = 0;
  if (PathExists(path)) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 64));
    if (!absl::SimpleAtoi(text, &incarnation) || incarnation < 0)
      return absl::DataLossError(
          absl::StrCat(path, " holds \"", absl::CHexEscape(text),
                       "\" instead of the number of the last start; write one that is at least as "
                       "high as any before"));
  }
  SLUICE_RETURN_IF_ERROR(WriteFileAtomic(path, absl::StrCat(++incarnation)));
  return incarnation;
}

std::function<void(const std::string&, uint64_t, std::shared_ptr<const LedgerEntry>)>
MakeLedgerHandler(const std::shared_ptr<LedgerMirror>& mirror) {
  if (mirror == nullptr) return nullptr;
  return [mirror](const std::string& job, uint64_t incarnation,
                  std::shared_ptr<const LedgerEntry> entry) {
    mirror->AddEntry(job, incarnation, std::move(entry));
  };
}

// The value of `flag`, or `otherwise` if it is not given. INVALID_ARGUMENT: it is below `least`.
absl::StatusOr<uint64_t> BytesOf(const daemon::Host& host, const char* flag, uint64_t otherwise,
                                 uint64_t least) {
  const std::string text = host.flags->OwnFlag(flag);
  uint64_t bytes = otherwise;
  if (!text.empty() && (!absl::SimpleAtoi(text, &bytes) || bytes < least)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", text, ": wanted a number of bytes, at least ", least));
  }
  return bytes;
}
}  // namespace

std::vector<daemon::About::Flag> QueueProgram::Flags() {
  using Kind = daemon::About::Flag::Kind;
  return {
      {kMemoryFlag,
       "bytes (or 512m, 8g) that the payload of all jobs may take; 0 means half of the machine's "
       "memory, or of its control group's limit if that is lower [0]",
       "", Kind::kBytes},
      {kNoSharedMemoryFlag, "send all payload in messages, also to and from clients on this host",
       "", Kind::kSwitch},
      {kMirrorFlag,
       "rediss://HOST[:PORT][/DB], a Redis with TLS that gets a copy of each job's ledger as a "
       "stream; redis://.. without TLS on loopback only; default: no copy",
       "SLUICE_MIRROR"},
      {kMirrorPasswordFlag,
       absl::StrCat("file with the password of that Redis; default: the environment variable ",
                    kMirrorPasswordVariable),
       ""},
      {kMirrorCaFlag,
       "PEM file with the authorities that may have signed the certificate of that Redis; default: "
       "those of the system",
       ""},
      {kSegmentFlag,
       "bytes of each file of a log, which is allocated in advance; at least 65536 [67108864]", ""},
      {kSnapshotFlag,
       "a job's next snapshot is taken once its log since the last one has more bytes than this "
       "and than twice the stored payload; at least 1024 [67108864]",
       ""}};
}

absl::StatusOr<std::unique_ptr<daemon::Program>> QueueProgram::Make(const daemon::Host& host) {
  std::optional<DirLock> lock;
  if (!host.flags->data_dir.empty()) {
    SLUICE_RETURN_IF_ERROR(MakeDirs(host.flags->data_dir));
    SLUICE_ASSIGN_OR_RETURN(DirLock taken, DirLock::Acquire(host.flags->data_dir));
    lock.emplace(std::move(taken));
  }
  JobTable::Options jobs{.incarnation = 0, .data_dir = host.flags->data_dir};
  SLUICE_ASSIGN_OR_RETURN(jobs.memory_bytes, BytesOf(host, kMemoryFlag, 0, 0));
  SLUICE_ASSIGN_OR_RETURN(jobs.log.segment_bytes,
                          BytesOf(host, kSegmentFlag, jobs.log.segment_bytes, 1 << 16));
  SLUICE_ASSIGN_OR_RETURN(jobs.snapshot_bytes,
                          BytesOf(host, kSnapshotFlag, jobs.snapshot_bytes, 1 << 10));
  jobs.log.reserve_bytes = std::min(jobs.log.reserve_bytes, jobs.log.segment_bytes / 2);
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<LedgerMirror> mirror, MakeMirror(host));
  return std::unique_ptr<daemon::Program>(
      new QueueProgram(host, std::move(lock), std::move(mirror), std::move(jobs)));
}

QueueProgram::QueueProgram(const daemon::Host& host, std::optional<DirLock> lock,
                           std::shared_ptr<LedgerMirror> mirror, JobTable::Options jobs)
    : host_(host),
      lock_(std::move(lock)),
      metrics_(std::make_shared<Metrics>(host.metrics)),
      mirror_(std::move(mirror)),
      jobs_([&] {
        // This is a plain pointer, because the metrics hold runners and the runners hold these
        // functions: a shared one would make a cycle.
        Metrics* const metrics = metrics_.get();
        jobs.added = [metrics](const std::shared_ptr<JobRunner>& runner) { metrics->Add(runner); };
        jobs.removed = [metrics, mirror = mirror_](const std::shared_ptr<JobRunner>& runner) {
          metrics->Remove(runner);
          if (mirror != nullptr) mirror->OnJobFreed(runner->id());
        };
        jobs.synced = [metrics](absl::Duration took) { metrics->ObserveSync(took); };
        jobs.recovered = [metrics](absl::Duration took) { metrics->ObserveRecovery(took); };
        jobs.ledger_changed = MakeLedgerHandler(mirror_);
        jobs.alarm = [this](const std::string& job, const Alarm& alarm) { RaiseAlarm(job, alarm); };
        return std::move(jobs);
      }()),
      server_(&jobs_, metrics_.get()),
      admin_(daemon::MakeAdminService(
          [this](const std::string& job) { return server_.Explain(job); })) {
  host.metrics->BeforeCollect([metrics = metrics_] { metrics->Update(); });
  metrics::AddDiskMetrics(host.metrics, "log", [dir = host.flags->data_dir] { return dir; });
}

QueueProgram::~QueueProgram() {
  if (link_ != nullptr) link_->Stop();
  server_.Stop();
  jobs_.Stop();
  if (mirror_ != nullptr) mirror_->Stop();
}

// With a controller, link_ is set: jobs begin only after it was made.
void QueueProgram::RaiseAlarm(const std::string& job, const Alarm& alarm) {
  if (link_ == nullptr) return;  // The daemon runs without a controller.
  common::v1::Event event;
  event.set_job(job);
  event.set_severity(alarm.is_news ? common::v1::SEVERITY_INFO : common::v1::SEVERITY_WARNING);
  event.set_code(alarm.code);
  event.set_message(alarm.message);
  link_->RaiseEvent(std::move(event));
}

std::vector<grpc::Service*> QueueProgram::services() { return {server_.service(), admin_.get()}; }

absl::Status QueueProgram::Start(const std::string& address, const std::string& ops) {
  SLUICE_RETURN_IF_ERROR(jobs_.Recover());
  if (host_.flags->OwnFlag(kNoSharedMemoryFlag).empty()) {
    if (absl::Status status = server_.ShareMemory(address); !status.ok())
      log::Warning("no_shared_memory", {{"message", status.message()}});
  }

  // Without a controller, jobs are set by whoever calls SetJob.
  if (host_.flags->controller.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t incarnation, NextIncarnation(host_.flags->data_dir));
    jobs_.SetIncarnation(incarnation);
    recovered_ = true;
    return absl::OkStatus();
  }

  recovered_ = true;
  daemon::ControllerLink::Options options{.controller = host_.flags->controller,
                                          .id = host_.flags->id,
                                          .role = rpc::Role::kQueue,
                                          .addresses = {{"grpc", address}, {"ops", ops}},
                                          .labels = {{"pool", host_.flags->pool}}};
  daemon::ControllerLink::Handlers handlers;
  handlers.on_registered = [this](int64_t incarnation) { jobs_.SetIncarnation(incarnation); };
  handlers.on_drain = [this] { host_.stop(absl::OkStatus()); };
  handlers.on_refused = [this](absl::Status why) { host_.stop(std::move(why)); };
  link_ = std::make_unique<daemon::ControllerLink>(std::move(options), std::move(handlers));
  link_->Start();
  return absl::OkStatus();
}

absl::Status QueueProgram::CheckReady() {
  if (!recovered_)
    return absl::UnavailableError("the jobs of the data directory are still being recovered");
  if (host_.flags->controller.empty() || (link_ != nullptr && link_->incarnation() > 0))
    return absl::OkStatus();
  return absl::UnavailableError("not registered with the controller yet");
}

void QueueProgram::Drain() {
  if (link_ != nullptr) link_->SetDraining();
  jobs_.Stop();
  server_.Stop();
}

}  // namespace sluice::queue
