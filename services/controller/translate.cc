#include "services/controller/translate.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/convert.h"
#include "common/rpc/identity.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::controller {
namespace {

// Decodes a digest that the store holds, which is valid hex.
std::string Bytes(const std::string& hex) { return FromHex(hex).value_or(""); }

job::v1::JobState StateToProto(JobState state) {
  switch (state) {
    case JobState::kWaiting: return job::v1::JOB_STATE_WAITING;
    case JobState::kStarting: return job::v1::JOB_STATE_STARTING;
    case JobState::kRunning: return job::v1::JOB_STATE_RUNNING;
    case JobState::kRecovering: return job::v1::JOB_STATE_RECOVERING;
    case JobState::kFinishing: return job::v1::JOB_STATE_FINISHING;
    case JobState::kSucceeded: return job::v1::JOB_STATE_SUCCEEDED;
    case JobState::kCancelling: return job::v1::JOB_STATE_CANCELLING;
    case JobState::kCancelled: return job::v1::JOB_STATE_CANCELLED;
    case JobState::kFailed: return job::v1::JOB_STATE_FAILED;
    case JobState::kPausing: return job::v1::JOB_STATE_PAUSING;
    case JobState::kPaused: return job::v1::JOB_STATE_PAUSED;
  }
  return job::v1::JOB_STATE_UNSPECIFIED;
}

void ToProto(const Node& node, common::v1::Node* out) {
  common::v1::NodeKind kind = common::v1::NODE_KIND_UNSPECIFIED;
  common::v1::NodeKind_Parse(absl::StrCat("NODE_KIND_", node.kind), &kind);
  out->set_kind(kind);
  out->set_id(node.id);
  out->set_daemon(node.daemon);
}

Node FromProto(const common::v1::Node& node) {
  // A kind that this build does not know, because the daemon's build is newer, has no name.
  const std::string name = common::v1::NodeKind_Name(node.kind());
  return {std::string(absl::StripPrefix(name, "NODE_KIND_")), node.id(), node.daemon()};
}

void ToProto(const EvalSummary& eval, job::v1::EvalSummary* out) {
  out->set_versions(eval.versions);
  out->set_first(eval.first);
  out->set_last(eval.last);
  out->set_best(eval.best);
  out->set_best_version(eval.best_version);
  out->set_best_checkpoint(eval.best_checkpoint);
}

EvalSummary FromProto(const job::v1::EvalSummary& eval) {
  return {eval.versions(), eval.first(),        eval.last(),
          eval.best(),     eval.best_version(), eval.best_checkpoint()};
}

}  // namespace

rpc::v1::Role ToProto(Role role) {
  switch (role) {
    case Role::kQueue: return rpc::v1::ROLE_QUEUE;
    case Role::kRollout: return rpc::v1::ROLE_ROLLOUT;
    case Role::kReward: return rpc::v1::ROLE_REWARD;
    case Role::kTrainer: return rpc::v1::ROLE_TRAINER;
  }
  return rpc::v1::ROLE_UNSPECIFIED;
}

absl::StatusOr<Role> RoleFromProto(rpc::v1::Role role) {
  for (const Role known : kRoles) {
    if (ToProto(known) == role) return known;
  }
  return Error(absl::StatusCode::kInvalidArgument, "ROLE",
               absl::StrCat("role ", static_cast<int>(role),
                            " does not register; a queue, rollout, reward or trainer does"));
}

void ToProto(const Event& event, common::v1::Event* out) {
  out->set_seq(event.seq);
  *out->mutable_at() = rpc::ToProto(event.at);
  out->set_incarnation(event.incarnation);
  out->set_severity(static_cast<common::v1::Severity>(event.severity));
  // If the text names no role of a daemon, the event is the controller's own.
  rpc::v1::Role role = rpc::v1::ROLE_CONTROLLER;
  for (const Role known : kRoles) {
    if (RoleName(known) == event.role) role = ToProto(known);
  }
  out->set_role(role);
  out->set_daemon(event.daemon);
  out->set_code(event.code);
  out->set_message(event.message);
  out->set_count(event.count);
}

void ToProto(const StepReport& step, const std::string& job, job::v1::StepReport* out) {
  out->set_job(job);
  out->set_k(step.k);
  *out->mutable_version() = rpc::ToProto(step.version);
  *out->mutable_at() = rpc::ToProto(step.at);
  out->mutable_values()->insert(step.values.begin(), step.values.end());
  out->mutable_staleness()->insert(step.staleness.begin(), step.staleness.end());
}

void ToProto(const Ledger& ledger, common::v1::Ledger* out) {
  out->set_accepted(ledger.accepted);
  out->set_durable(ledger.durable);
  out->set_applied(ledger.applied);
  out->set_live(ledger.live);
  out->mutable_dropped()->insert(ledger.dropped.begin(), ledger.dropped.end());
  out->set_tokens_generated(ledger.tokens_generated);
  out->set_tokens_trained(ledger.tokens_trained);
  out->set_tokens_masked(ledger.tokens_masked);
  out->set_durable_version(ledger.durable_version);
  out->set_hash(Bytes(ledger.hash));
  out->set_event(ledger.event);
}

Ledger FromProto(const common::v1::Ledger& ledger) {
  Ledger out;
  out.accepted = ledger.accepted();
  out.durable = ledger.durable();
  out.applied = ledger.applied();
  out.live = ledger.live();
  out.dropped.insert(ledger.dropped().begin(), ledger.dropped().end());
  out.tokens_generated = ledger.tokens_generated();
  out.tokens_trained = ledger.tokens_trained();
  out.tokens_masked = ledger.tokens_masked();
  out.durable_version = ledger.durable_version();
  out.hash = ToHex(ledger.hash());
  out.event = ledger.event();
  return out;
}

void ToProto(const CurvePoint& point, job::v1::CurvePoint* out) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  out->set_first_step(point.first_step);
  out->set_last_step(point.last_step);
  out->set_reward(point.reward.value_or(kNone));
  out->set_loss(point.loss.value_or(kNone));
}

void ToProto(const Result& result, job::v1::JobResult* out) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  out->set_job(result.job);
  out->set_state(result.state);
  out->set_steps(result.steps);
  out->set_seconds(result.seconds);
  out->set_reward_first(result.reward_first.value_or(kNone));
  out->set_reward_last(result.reward_last.value_or(kNone));
  out->set_tokens_generated(result.tokens_generated);
  out->set_tokens_trained(result.tokens_trained);
  out->set_staleness_max(result.staleness_max);
  out->mutable_staleness_histogram()->insert(result.staleness_histogram.begin(),
                                             result.staleness_histogram.end());
  ToProto(result.ledger, out->mutable_ledger());
  out->mutable_restarts()->insert(result.restarts.begin(), result.restarts.end());
  out->mutable_warnings()->Add(result.warnings.begin(), result.warnings.end());
  out->set_checkpoint(result.checkpoint);
  for (const CurvePoint& point : result.curve) ToProto(point, out->add_curve());
  if (result.best.has_value()) ToProto(*result.best, out->mutable_best());
  if (result.worst.has_value()) ToProto(*result.worst, out->mutable_worst());
  if (result.eval.versions > 0) ToProto(result.eval, out->mutable_eval());
}

void ToProto(const Worker& worker, common::v1::Worker* out) {
  out->set_id(worker.id);
  out->set_role(ToProto(worker.role));
  out->set_incarnation(worker.incarnation);
}

void ToProto(const Edge& edge, common::v1::WaitEdge* out) {
  ToProto(edge.waiter, out->mutable_waiter());
  ToProto(edge.on, out->mutable_on());
  *out->mutable_since() = rpc::ToProto(edge.since);
  out->set_cause(edge.cause);
  out->set_next(edge.next);
  if (edge.next_in >= absl::ZeroDuration()) *out->mutable_next_in() = rpc::ToProto(edge.next_in);
  out->set_hint(edge.hint);
}

Edge FromProto(const common::v1::WaitEdge& edge) {
  Edge out{FromProto(edge.waiter()), FromProto(edge.on()), rpc::FromProto(edge.since()),
           edge.cause(), edge.next()};
  if (edge.has_next_in()) out.next_in = rpc::FromProto(edge.next_in());
  out.hint = edge.hint();
  return out;
}

void ToProto(const Job& job, job::v1::JobStatus* out) {
  const JobRecord& record = job.record;
  out->set_job(record.id);
  out->set_name(record.name);
  out->set_state(StateToProto(record.state));
  out->mutable_conditions()->Add(record.conditions.begin(), record.conditions.end());
  *out->mutable_created() = rpc::ToProto(record.created);
  out->set_incarnation(job.assign.trainer_incarnation);
  out->set_step(record.step);
  *out->mutable_version() = rpc::ToProto(record.version);
  out->set_message(record.message);
  out->set_code(record.code);
  out->set_owner(record.owner);
  if (record.since != absl::InfiniteFuture()) *out->mutable_since() = rpc::ToProto(record.since);
  out->set_starts_when(job.starts_when);
  if (!job.assign.queue.empty() && record.stage != Stage::kOver) out->add_daemons(job.assign.queue);
  for (const Worker& worker : job.assign.workers) out->add_daemons(worker.id);
}

namespace {

// What a daemon may say of itself. The controller keeps all of it, for each daemon.
constexpr int kMaxAddresses = 8, kMaxLabels = 32, kMaxDevices = 64, kMaxRunning = 1000;
constexpr size_t kJobIdBytes = 32;
constexpr size_t kMaxTextBytes = 256;  // Of a label's key or value, or of the build.
// Incarnations rise by one at each start, so no real one comes near. It keeps the sum of the next
// one from overflowing, and is exact as a number of JSON.
constexpr int64_t kMaxIncarnation = int64_t{1} << 52;

absl::Status Refuse(absl::string_view field, absl::string_view why) {
  return Error(absl::StatusCode::kInvalidArgument, "REGISTER",
               absl::StrCat("the field ", field, " ", why));
}

absl::Status CheckRegister(const registry::v1::RegisterRequest& request) {
  if (!rpc::IsName(request.daemon())) {
    return Refuse("daemon", absl::StrCat("is \"", absl::CEscape(request.daemon().substr(0, 64)),
                                         "\"; wanted: 1 to 63 of a-z, 0-9, '.', '_' and '-', first "
                                         "a letter or a digit"));
  }
  if (request.incarnation() < 0 || request.incarnation() > kMaxIncarnation)
    return Refuse("incarnation",
                  absl::StrCat("is ", request.incarnation(), "; wanted: 0 to ", kMaxIncarnation));
  if (request.build().size() > kMaxTextBytes)
    return Refuse("build", absl::StrCat("has ", request.build().size(), " bytes; the limit is ",
                                        kMaxTextBytes));

  if (request.addresses_size() > kMaxAddresses)
    return Refuse("addresses", absl::StrCat("has ", request.addresses_size(),
                                            " entries; the limit is ", kMaxAddresses));
  for (const auto& [listener, address] : request.addresses()) {
    if (!rpc::IsName(listener)) return Refuse("addresses", "has a listener with a bad name");
    // Peers that have no TLS refuse addresses off loopback themselves.
    SLUICE_RETURN_IF_ERROR(Annotate(rpc::CheckAddress(address, /*tls=*/true),
                                    absl::StrCat("the field addresses[", listener, "]")));
  }

  if (request.labels_size() > kMaxLabels)
    return Refuse("labels", absl::StrCat("has ", request.labels_size(), " entries; the limit is ",
                                         kMaxLabels));
  for (const auto& [key, value] : request.labels()) {
    if (key.size() > kMaxTextBytes || value.size() > kMaxTextBytes)
      return Refuse("labels", absl::StrCat("has a text of more than ", kMaxTextBytes, " bytes"));
  }

  if (request.capacity().devices_size() > kMaxDevices)
    return Refuse("capacity.devices", absl::StrCat("has ", request.capacity().devices_size(),
                                                   " entries; the limit is ", kMaxDevices));
  if (request.running_size() > kMaxRunning)
    return Refuse("running", absl::StrCat("has ", request.running_size(), " entries; the limit is ",
                                          kMaxRunning));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RegisterInput> FromProto(const registry::v1::RegisterRequest& request) {
  SLUICE_RETURN_IF_ERROR(CheckRegister(request));
  RegisterInput input;
  DaemonRecord& daemon = input.daemon;
  daemon.id = request.daemon();
  SLUICE_ASSIGN_OR_RETURN(daemon.role, RoleFromProto(request.role()));
  if (request.boot().size() != 16) {
    return Error(
        absl::StatusCode::kInvalidArgument, "BOOT",
        absl::StrCat("the field boot has ", request.boot().size(), " bytes, but must have 16"));
  }
  daemon.boot = ToHex(request.boot());
  daemon.incarnation = request.incarnation();
  daemon.build = request.build();
  daemon.protocol_min = request.protocol_min();
  daemon.protocol_max = request.protocol_max();
  daemon.addresses.insert(request.addresses().begin(), request.addresses().end());
  daemon.labels.insert(request.labels().begin(), request.labels().end());
  daemon.capacity = ToHex(request.capacity().SerializeAsString());
  for (const registry::v1::Running& running : request.running()) {
    input.generation = std::max(input.generation, running.generation());
    input.running.push_back(running.job().substr(0, kJobIdBytes));
  }
  return input;
}

HeartbeatInput FromProto(const registry::v1::HeartbeatRequest& request, uint64_t stream) {
  HeartbeatInput input;
  input.daemon = request.daemon();
  input.incarnation = request.incarnation();
  input.stream = stream;
  input.generation = request.generation();
  input.draining = request.draining();
  input.load.insert(request.load().begin(), request.load().end());
  for (const registry::v1::Progress& progress : request.progress()) {
    input.progress.push_back({progress.job(), progress.incarnation(), progress.ready(),
                              rpc::FromProto(progress.version()), progress.step(), progress.phase(),
                              progress.cause(), FromProto(progress.eval())});
  }
  for (const job::v1::StepReport& step : request.steps()) {
    StepReport report;
    report.k = step.k();
    report.version = rpc::FromProto(step.version());
    report.at = rpc::FromProto(step.at());
    report.values.insert(step.values().begin(), step.values().end());
    report.staleness.insert(step.staleness().begin(), step.staleness().end());
    input.steps.emplace_back(step.job(), std::move(report));
  }
  for (const common::v1::Event& event : request.events()) {
    Event out;
    out.seq = event.seq();
    const bool known = event.severity() >= common::v1::SEVERITY_INFO &&
                       event.severity() <= common::v1::SEVERITY_ALARM;
    out.severity = known ? static_cast<Severity>(event.severity()) : Severity::kInfo;
    out.code = event.code();
    out.message = event.message();
    input.events.emplace_back(event.job(), std::move(out));
  }
  return input;
}

void ToProto(const DesiredState& desired, const Controller& core,
             registry::v1::HeartbeatResponse* out) {
  out->set_generation(desired.generation);
  out->set_events_stored(desired.events_stored);
  for (const DaemonAssignment& assignment : desired.assignments) {
    registry::v1::Assignment& to = *out->add_jobs();
    to.set_job(assignment.job);
    to.set_incarnation(assignment.incarnation);
    for (const Worker& peer : assignment.peers) ToProto(peer, to.add_peers());
    to.set_phase(static_cast<registry::v1::AssignmentPhase>(assignment.phase));
    to.set_checkpoint(assignment.checkpoint);
    to.mutable_spec()->ParseFromString(core.jobs().at(assignment.job).spec);
    to.set_protocol(kProtocol);
    to.mutable_queues()->Add(assignment.queues.begin(), assignment.queues.end());
    to.mutable_weights()->Add(assignment.weights.begin(), assignment.weights.end());
    to.set_rank(assignment.rank);
    to.set_world(assignment.world);
    to.set_rendezvous(assignment.rendezvous);
    to.mutable_rewards()->Add(assignment.rewards.begin(), assignment.rewards.end());
  }
  for (const auto& [job, step] : desired.steps_stored) {
    registry::v1::StepStored& stored = *out->add_steps_stored();
    stored.set_job(job);
    stored.set_k(step.k);
    stored.set_incarnation(step.incarnation);
  }
}

}  // namespace sluice::controller
