#include "services/queue/convert.h"

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"

namespace sluice::queue {
namespace {

absl::Status Bad(absl::string_view field, absl::string_view why) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", absl::StrCat(field, ": ", why));
}

absl::StatusOr<Id16> IdFrom(absl::string_view field, const std::string& bytes) {
  absl::StatusOr<Id16> id = Id16::FromBytes(bytes);
  if (!id.ok()) return Bad(field, absl::StrCat("an id of 16 bytes is wanted, not ", bytes.size()));
  return id;
}

absl::StatusOr<std::vector<Id16>> IdsFrom(absl::string_view field, const google::protobuf::RepeatedPtrField<std::string>& all) {
  std::vector<Id16> ids;
  for (const std::string& bytes : all) {
    SLUICE_ASSIGN_OR_RETURN(const Id16 id, IdFrom(field, bytes));
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<TrajectoryRef> RefFrom(const common::v1::TrajectoryRef& in) {
  SLUICE_ASSIGN_OR_RETURN(const Id16 id, IdFrom("group", in.group()));
  TrajectoryRef ref{.group = GroupId::From(id), .attempt = in.attempt()};
  if (in.has_member()) ref.member = in.member();
  return ref;
}

absl::Duration WaitFrom(bool set, const google::protobuf::Duration& wait) { return set ? rpc::FromProto(wait) : absl::Seconds(30); }

Spec SpecFrom(const v1::QueueSpec& in) {
  Spec spec;
  spec.seed = in.seed();
  spec.deterministic = in.deterministic();
  spec.policies.assign(in.policies().begin(), in.policies().end());
  spec.groups_per_step = in.groups_per_step();
  spec.group_size = in.group_size();
  spec.group_min = in.group_min();
  spec.max_staleness = in.max_staleness();
  if (in.has_admission_staleness()) spec.admission_staleness = in.admission_staleness();
  spec.oversample = in.oversample();
  spec.statistic = static_cast<Statistic>(in.statistic());
  spec.straggler = static_cast<Straggler>(in.straggler());
  spec.wait = rpc::FromProto(in.wait());
  spec.reissues = in.reissues();
  spec.min_trainable = in.min_trainable();
  spec.max_version_span = in.max_version_span();
  spec.max_steps = in.max_steps();
  spec.durability = static_cast<Durability>(in.durability());
  spec.quota_bytes = in.quota_bytes();
  spec.lease = rpc::FromProto(in.lease());
  spec.member_tokens = in.member_tokens();
  spec.token_bytes = in.token_bytes();
  for (const v1::Source& source : in.sources()) {
    spec.sources.push_back({.name = source.name(), .path = source.path(), .weight = source.weight(), .fields = {source.fields().begin(), source.fields().end()}});
  }
  spec.sampler = static_cast<Sampler>(in.sampler());
  spec.epochs = in.epochs();
  spec.filter = static_cast<Filter>(in.filter());
  spec.max_rejected_steps = in.max_rejected_steps();
  for (const v1::TaskSpec& task : in.tasks()) {
    spec.tasks.push_back({.name = task.name(),
                          .needs = {task.needs().begin(), task.needs().end()},
                          .produces = {task.produces().begin(), task.produces().end()},
                          .granularity = static_cast<Granularity>(task.granularity()),
                          .pool = task.pool(),
                          .deadline = rpc::FromProto(task.deadline()),
                          .tries = task.tries()});
  }
  const common::v1::Sampling& sampling = in.sampling();
  spec.sampling = {.temperature = sampling.temperature(),
                   .top_p = sampling.top_p(),
                   .min_p = sampling.min_p(),
                   .top_k = sampling.top_k(),
                   .max_tokens = sampling.max_tokens(),
                   .min_tokens = sampling.min_tokens(),
                   .stop = {sampling.stop().begin(), sampling.stop().end()},
                   .stop_ids = {sampling.stop_ids().begin(), sampling.stop_ids().end()},
                   .ignore_eos = sampling.ignore_eos()};
  spec.rows_only = in.rows_only();
  spec.skip_bad_rows = in.skip_bad_rows();
  return spec;
}

WorkerRole RoleFrom(sluice::rpc::v1::Role role) {
  switch (role) {
    case sluice::rpc::v1::ROLE_CONTROLLER: return WorkerRole::kController;
    case sluice::rpc::v1::ROLE_ROLLOUT: return WorkerRole::kRollout;
    case sluice::rpc::v1::ROLE_REWARD: return WorkerRole::kReward;
    case sluice::rpc::v1::ROLE_TRAINER: return WorkerRole::kTrainer;
    default: return WorkerRole::kNone;
  }
}
}  // namespace

absl::StatusOr<From> FromProto(const common::v1::Call& call) {
  const common::v1::JobRef& job = call.job();
  if (job.job().size() != 32 || !FromHex(job.job()).ok()) return Bad("call.job.job", absl::StrCat("32 hex digits are wanted, not \"", job.job(), "\""));
  if (job.worker().empty()) return Bad("call.job.worker", "is empty");
  return From{job.job(), {job.worker(), job.incarnation()}};
}

absl::StatusOr<Id16> RequestOf(const common::v1::Call& call) { return IdFrom("call.request", call.request()); }

absl::StatusOr<SetJob> FromProto(const v1::SetJobRequest& request) {
  for (const v1::Source& source : request.spec().sources()) {
    if (source.format() != v1::SOURCE_FORMAT_UNSPECIFIED && source.format() != v1::SOURCE_FORMAT_JSONL) {
      return Bad("spec.sources.format", absl::StrCat(v1::SourceFormat_Name(source.format()), " is not supported by this build's queue; convert ", source.path(), " to JSON lines"));
    }
  }
  SetJob set{.revision = request.revision(), .spec = SpecFrom(request.spec()), .phase = static_cast<Phase>(request.phase())};
  for (const common::v1::Worker& worker : request.workers()) set.workers.push_back({worker.id(), RoleFrom(worker.role()), worker.incarnation()});
  return set;
}

absl::StatusOr<Admit> FromProto(const v1::AdmitRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const Id16 id, RequestOf(request.call()));
  return Admit{.request = id, .room = request.room(), .own = request.has_own(), .wait = WaitFrom(request.has_wait(), request.wait())};
}

absl::StatusOr<Seal> FromProto(const v1::SealRequest& request) {
  Seal seal;
  for (const v1::SealItem& item : request.items()) {
    SLUICE_ASSIGN_OR_RETURN(const TrajectoryRef ref, RefFrom(item.ref()));
    SLUICE_ASSIGN_OR_RETURN(const Id16 lease, IdFrom("items.lease", item.lease()));
    seal.items.push_back({.ref = ref, .lease = lease, .tokens = item.tokens(), .crc32c = item.crc32c(), .finish = static_cast<Finish>(item.finish()), .turns = item.turns()});
  }
  return seal;
}

absl::StatusOr<Drop> FromProto(const v1::DropRequest& request) {
  Drop drop;
  for (const v1::DropItem& item : request.items()) {
    SLUICE_ASSIGN_OR_RETURN(const TrajectoryRef ref, RefFrom(item.ref()));
    SLUICE_ASSIGN_OR_RETURN(const Id16 lease, IdFrom("items.lease", item.lease()));
    drop.items.push_back({ref, lease, item.reason()});
  }
  return drop;
}

absl::StatusOr<LeaseTasks> FromProto(const v1::LeaseTasksRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const Id16 id, RequestOf(request.call()));
  LeaseTasks lease{.request = id, .generation = request.generation(), .wait = WaitFrom(request.has_wait(), request.wait())};
  for (const v1::Room& room : request.rooms()) lease.rooms.push_back({room.pool(), room.count()});
  return lease;
}

absl::StatusOr<Renew> FromProto(const v1::RenewRequest& request) {
  Renew renew;
  SLUICE_ASSIGN_OR_RETURN(renew.leases, IdsFrom("leases", request.leases()));
  for (const common::v1::Loaded& loaded : request.loaded()) renew.loaded.push_back({loaded.policy(), rpc::FromProto(loaded.version()), loaded.verified()});
  return renew;
}

absl::StatusOr<Release> FromProto(const v1::ReleaseRequest& request) {
  Release release{.worker = request.worker(),
                  .incarnation = request.incarnation(),
                  .reason = static_cast<ReleaseReason>(request.reason()),
                  .not_before = rpc::FromProto(request.not_before())};
  SLUICE_ASSIGN_OR_RETURN(release.leases, IdsFrom("leases", request.leases()));
  return release;
}

absl::StatusOr<AcquireBatch> FromProto(const v1::AcquireBatchRequest& request) {
  return AcquireBatch{.k = request.k(), .from = request.from(), .stream = request.stream(), .wait = WaitFrom(request.has_wait(), request.wait())};
}

absl::StatusOr<queue::Apply> FromProto(const v1::ApplyRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const Id16 lease, IdFrom("lease", request.lease()));
  return queue::Apply{.k = request.k(), .lease = lease, .crc32c = request.crc32c(), .skipped = request.skipped(), .want_cursor = request.want_cursor()};
}

absl::StatusOr<AdvanceVersion> FromProto(const v1::AdvanceVersionRequest& request) {
  AdvanceVersion advance{.policy = request.policy(), .next = rpc::FromProto(request.next())};
  if (request.has_expected()) advance.expected = rpc::FromProto(request.expected());
  return advance;
}

absl::StatusOr<Durable> FromProto(const v1::DurableRequest& request) {
  return Durable{.version = request.version(), .checkpoint = request.checkpoint(), .hash = request.hash()};
}

absl::StatusOr<Restore> FromProto(const v1::RestoreRequest& request) {
  return Restore{.cursor = request.cursor(), .checkpoint = request.checkpoint(), .mode = static_cast<RestoreMode>(request.mode())};
}

absl::StatusOr<Want> FromProto(const common::v1::Want& in) {
  SLUICE_ASSIGN_OR_RETURN(TrajectoryRef owner, RefFrom(in.owner()));
  return Want{.owner = std::move(owner), .names = {in.names().begin(), in.names().end()}, .from = in.from(), .to = in.to()};
}

// Put. ----------------------------------------------------------------------------------------------------------------

namespace {
absl::StatusOr<Record> RecordFrom(const common::v1::Record& in) {
  SLUICE_ASSIGN_OR_RETURN(TrajectoryRef owner, RefFrom(in.owner()));
  SLUICE_ASSIGN_OR_RETURN(const Id16 lease, IdFrom("lease", in.lease()));
  Record record{.owner = std::move(owner), .lease = lease, .last = in.last()};
  if (!in.task().empty()) {
    SLUICE_ASSIGN_OR_RETURN(record.task, IdFrom("task", in.task()));
  }
  if (!in.has_piece()) return record;
  const common::v1::Piece& piece = in.piece();
  record.piece = Piece{.at = piece.at(),
                       .segment = piece.segment(),
                       .role = static_cast<SegmentRole>(piece.role()),
                       .turn = piece.turn(),
                       .count = piece.count(),
                       .trainable = piece.trainable()};
  if (piece.has_parent()) record.piece->parent = piece.parent();
  if (piece.has_duration()) record.piece->duration = rpc::FromProto(piece.duration());
  for (const common::v1::VersionRun& run : piece.runs()) record.piece->runs.push_back(rpc::FromProto(run));
  return record;
}
}  // namespace

absl::StatusOr<PutBatch> ReadRecords(const v1::PutHeader& header, const rpc::Frame& frame, Arena* arena) {
  uint64_t payload = 0, total = 0;
  for (const common::v1::Record& record : header.records()) {
    for (const common::v1::Field& field : record.fields()) {
      const bool in_place = !field.inline_().empty();
      if (in_place && field.inline_().size() != field.bytes()) return Bad("fields.inline", absl::StrCat(field.name(), " says ", field.bytes(), " bytes, carries ", field.inline_().size()));
      if (!in_place && field.bytes() > frame.payload_bytes()) return Bad("fields.bytes", absl::StrCat(field.name(), " says ", field.bytes(), " bytes, the payload has ", frame.payload_bytes()));
      payload += in_place ? 0 : field.bytes();
      total += field.bytes();
    }
  }
  if (payload != frame.payload_bytes()) return Bad("payload", absl::StrCat("fields say ", payload, " bytes, it has ", frame.payload_bytes()));
  const std::shared_ptr<char> memory = arena->Allocate(total);
  char* to = memory.get();
  rpc::PayloadReader reader(frame);
  PutBatch batch;
  for (int i = 0; i < header.records_size(); ++i) {
    const common::v1::Record& in = header.records(i);
    absl::StatusOr<Record> record = RecordFrom(in);
    absl::Status status = record.status();
    for (const common::v1::Field& field : in.fields()) {
      uint32_t crc = 0;
      if (field.inline_().empty()) {
        SLUICE_ASSIGN_OR_RETURN(crc, reader.Copy(field.bytes(), to));
      } else {
        crc = Crc32cCopy(field.inline_(), to);
      }
      Field out{.name = field.name(),
                .dtype = field.dtype(),
                .shape = {field.shape().begin(), field.shape().end()},
                .rows = {field.rows().begin(), field.rows().end()},
                .round = field.round(),
                .bytes = {.data = std::shared_ptr<const char>(memory, to), .size = field.bytes(), .crc32c = crc}};
      to += field.bytes();
      if (status.ok() && crc != field.crc32c()) {
        status = Error(absl::StatusCode::kDataLoss, "BAD_CRC", absl::StrCat("field ", field.name(), " has CRC ", crc, ", not ", field.crc32c()));
      }
      if (status.ok() && field.from() != 0) status = Bad("fields.from", absl::StrCat(field.name(), ": a field cut over messages is not supported by this build's queue"));
      if (status.ok()) record->fields.push_back(std::move(out));
    }
    if (status.ok()) {
      batch.places.push_back(i);
      batch.records.push_back(*std::move(record));
    } else {
      batch.failed.push_back({.record = static_cast<uint32_t>(i), .status = status});
    }
  }
  return batch;
}

// Answers. ------------------------------------------------------------------------------------------------------------

namespace {
constexpr uint64_t kInlineBytes = 64;

void ToProto(const Lease& lease, common::v1::Lease* out) {
  out->set_id(lease.id.str());
  *out->mutable_ttl() = rpc::ToProto(lease.ttl);
}

void ToProto(const Row& row, common::v1::Row* out) {
  out->set_source(row.source);
  out->set_epoch(row.ref.epoch);
  out->set_index(row.ref.index);
  out->set_occurrence(row.ref.occurrence);
  out->set_json(row.json);
}

void Describe(const Field& field, common::v1::Field* out) {
  out->set_name(field.name);
  out->set_dtype(static_cast<common::v1::Dtype>(field.dtype));
  out->mutable_shape()->Assign(field.shape.begin(), field.shape.end());
  out->mutable_rows()->Assign(field.rows.begin(), field.rows.end());
  out->set_bytes(field.bytes.size);
  out->set_crc32c(field.bytes.crc32c);
  out->set_round(field.round);
}

void InlineToProto(const Field& field, common::v1::Field* out) {
  Describe(field, out);
  out->set_inline_(std::string(field.bytes.view()));
}

void ToProto(const Node& node, common::v1::Node* out) {
  out->set_kind(static_cast<common::v1::NodeKind>(node.kind));
  out->set_id(node.id);
  out->set_daemon(node.daemon);
}

template <typename Response>
void ItemsToProto(const ItemsAnswer& answer, Response* out) {
  out->set_repeat(answer.repeat);
  for (const Item& item : answer.items) {
    common::v1::Item& to = *out->add_items();
    to.set_code(static_cast<uint32_t>(item.status.code()));
    to.set_reason(ReasonOf(item.status));
    to.set_watermark(item.watermark);
    to.set_repeat(item.repeat);
  }
}
}  // namespace

void ToProto(const TrajectoryRef& ref, common::v1::TrajectoryRef* out) {
  out->set_group(ref.group.id().str());
  if (ref.member) out->set_member(*ref.member);
  out->set_attempt(ref.attempt);
}

void ToProto(const WaitEdge& edge, common::v1::WaitEdge* out) {
  ToProto(edge.waiter, out->mutable_waiter());
  ToProto(edge.on, out->mutable_on());
  *out->mutable_since() = rpc::ToProto(edge.since);
  out->set_cause(edge.cause);
  out->set_next(edge.next);
  if (edge.next_in > absl::ZeroDuration()) *out->mutable_next_in() = rpc::ToProto(edge.next_in);
  out->set_hint(edge.hint);
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
  out->set_hash(ledger.hash);
  out->set_event(ledger.event);
}

void ToProto(const Loaded& loaded, common::v1::Loaded* out) {
  out->set_policy(loaded.policy);
  *out->mutable_version() = rpc::ToProto(loaded.version);
  out->set_verified(loaded.verified);
}

void ToProto(const Want& want, common::v1::Want* out) {
  ToProto(want.owner, out->mutable_owner());
  for (const std::string& name : want.names) out->add_names(name);
  out->set_from(want.from);
  out->set_to(want.to);
}

void ToProto(const SetJobAnswer& answer, v1::SetJobResponse* out) {
  out->set_repeat(answer.repeat);
  out->set_incarnation(answer.incarnation);
  out->set_version(answer.version);
  out->set_restored(answer.restored);
  ToProto(answer.ledger, out->mutable_ledger());
}

void ToProto(const AdmitAnswer& answer, const Sampling& sampling, v1::AdmitResponse* out) {
  out->set_repeat(answer.repeat);
  out->set_phase(static_cast<v1::Phase>(answer.phase));
  if (answer.edge) ToProto(*answer.edge, out->mutable_edge());
  for (const queue::Grant& grant : answer.grants) {
    v1::Grant& to = *out->add_grants();
    to.set_group(grant.group.id().str());
    to.set_step(grant.step);
    ToProto(grant.row, to.mutable_row());
    to.set_seed(grant.seed);
    to.set_size(grant.size);
    common::v1::Sampling& how = *to.mutable_sampling();
    how.set_temperature(sampling.temperature);
    how.set_top_p(sampling.top_p);
    how.set_top_k(sampling.top_k);
    how.set_min_p(sampling.min_p);
    how.set_max_tokens(sampling.max_tokens);
    how.set_min_tokens(sampling.min_tokens);
    how.mutable_stop()->Assign(sampling.stop.begin(), sampling.stop.end());
    how.mutable_stop_ids()->Assign(sampling.stop_ids.begin(), sampling.stop_ids.end());
    how.set_ignore_eos(sampling.ignore_eos);
    for (const Member& member : grant.members) {
      v1::Member& m = *to.add_members();
      m.set_member(member.member);
      m.set_attempt(member.attempt);
      ToProto(member.lease, m.mutable_lease());
      m.set_prefix(member.prefix);
    }
    *to.mutable_overdue() = rpc::ToProto(grant.overdue);
  }
}

void ToProto(const ItemsAnswer& answer, v1::SealResponse* out) { ItemsToProto(answer, out); }
void ToProto(const ItemsAnswer& answer, v1::DropResponse* out) { ItemsToProto(answer, out); }

void ToProto(const LeaseTasksAnswer& answer, v1::LeaseTasksResponse* out) {
  out->set_repeat(answer.repeat);
  if (answer.edge) ToProto(*answer.edge, out->mutable_edge());
  for (const TaskGrant& task : answer.tasks) {
    v1::Task& to = *out->add_tasks();
    to.set_id(task.id.str());
    to.set_name(task.name);
    ToProto(task.owner, to.mutable_owner());
    ToProto(task.row, to.mutable_row());
    ToProto(task.lease, to.mutable_lease());
    if (!task.wants.empty()) ToProto(Want{.owner = task.owner, .names = task.wants}, to.add_wants());
    for (const Field& field : task.fields) InlineToProto(field, to.add_fields());
    to.set_finish(static_cast<common::v1::Finish>(task.finish));
    to.set_round(task.round);
    to.set_tries(task.tries);
    *to.mutable_deadline() = rpc::ToProto(task.deadline);
  }
}

void ToProto(const RenewAnswer& answer, v1::RenewResponse* out) {
  for (const Id16& id : answer.lost) out->add_lost(id.str());
  *out->mutable_ttl() = rpc::ToProto(answer.ttl);
}

void ToProto(const ReleaseAnswer& answer, v1::ReleaseResponse* out) {
  out->set_repeat(answer.repeat);
  out->set_released(answer.released);
}

void ToProto(const AcquireBatchAnswer& answer, v1::AcquireBatchResponse* out) {
  out->set_repeat(answer.repeat);
  if (answer.edge) ToProto(*answer.edge, out->mutable_edge());
  if (!answer.filled) return;
  v1::Batch& batch = *out->mutable_batch();
  batch.set_k(answer.k);
  ToProto(answer.lease, batch.mutable_lease());
  batch.set_from(answer.from);
  batch.set_closed(answer.closed);
  batch.set_size(answer.size);
  batch.set_crc32c(answer.crc32c);
  for (const BatchGroup& group : answer.groups) {
    v1::BatchGroup& to = *batch.add_groups();
    to.set_group(group.group.id().str());
    ToProto(group.row, to.mutable_row());
    to.set_size(group.size);
    to.mutable_pool()->Assign(group.pool.begin(), group.pool.end());
    for (const BatchMember& member : group.members) {
      v1::BatchMember& m = *to.add_members();
      m.set_member(member.member);
      m.set_attempt(member.attempt);
      m.set_tokens(member.tokens);
      m.set_trained(member.trained);
      m.set_crc32c(member.crc32c);
      for (const TokenRun& run : member.masked) {
        v1::TokenRun& masked = *m.add_masked();
        masked.set_first(run.first);
        masked.set_count(run.count);
      }
      *m.mutable_oldest() = rpc::ToProto(member.oldest);
      *m.mutable_newest() = rpc::ToProto(member.newest);
      m.set_finish(static_cast<common::v1::Finish>(member.finish));
      for (const Field& field : member.fields) InlineToProto(field, m.add_fields());
    }
  }
}

void ToProto(const ApplyAnswer& answer, v1::ApplyResponse* out) {
  out->set_repeat(answer.repeat);
  out->set_version(answer.version);
  ToProto(answer.ledger, out->mutable_ledger());
  out->set_cursor(answer.cursor);
}

void ToProto(const AdvanceVersionAnswer& answer, v1::AdvanceVersionResponse* out) {
  out->set_repeat(answer.repeat);
  *out->mutable_current() = rpc::ToProto(answer.current);
}

void ToProto(const DurableAnswer& answer, v1::DurableResponse* out) { out->set_repeat(answer.repeat); }

void ToProto(const RestoreAnswer& answer, v1::RestoreResponse* out) {
  out->set_repeat(answer.repeat);
  out->set_mode(static_cast<v1::RestoreMode>(answer.mode));
  out->set_version(answer.version);
  out->set_end(answer.end);
  out->set_fork(answer.fork);
  for (const Loaded& loaded : answer.published) ToProto(loaded, out->add_published());
  ToProto(answer.ledger, out->mutable_ledger());
}

void ToProto(const StatsAnswer& answer, v1::StatsResponse* out) {
  ToProto(answer.ledger, out->mutable_ledger());
  out->mutable_groups()->insert(answer.groups.begin(), answer.groups.end());
  out->mutable_slots()->insert(answer.slots.begin(), answer.slots.end());
  out->mutable_bytes()->insert(answer.bytes.begin(), answer.bytes.end());
  out->set_version(answer.version);
  out->set_lowest(answer.lowest);
  out->set_admission_staleness(answer.admission_staleness);
  out->mutable_waiting()->insert(answer.waiting.begin(), answer.waiting.end());
  out->mutable_staleness()->insert(answer.staleness.begin(), answer.staleness.end());
  out->mutable_length_ratio()->insert(answer.length_ratio.begin(), answer.length_ratio.end());
}

void ToProto(const PeekRow& row, v1::PeekRow* out) {
  ToProto(row.node, out->mutable_node());
  out->set_state(row.state);
  out->set_worker(row.worker);
  *out->mutable_age() = rpc::ToProto(row.age);
  out->set_json(row.json);
}

void ToProto(const Record& record, common::v1::Record* out, std::vector<rpc::PayloadSlice>* payload) {
  ToProto(record.owner, out->mutable_owner());
  for (const Field& field : record.fields) {
    common::v1::Field* to = out->add_fields();
    if (field.bytes.size > 0 && field.bytes.size <= kInlineBytes) {
      InlineToProto(field, to);
      continue;
    }
    Describe(field, to);
    if (field.bytes.size > 0) payload->push_back({.bytes = field.bytes.view(), .owner = field.bytes.data});
  }
  if (!record.piece) return;
  common::v1::Piece& piece = *out->mutable_piece();
  piece.set_at(record.piece->at);
  piece.set_segment(record.piece->segment);
  if (record.piece->parent) piece.set_parent(*record.piece->parent);
  piece.set_role(static_cast<common::v1::SegmentRole>(record.piece->role));
  piece.set_turn(record.piece->turn);
  piece.set_count(record.piece->count);
  piece.set_trainable(record.piece->trainable);
  for (const VersionRun& run : record.piece->runs) *piece.add_runs() = rpc::ToProto(run);
  if (record.piece->duration) *piece.mutable_duration() = rpc::ToProto(*record.piece->duration);
}

}  // namespace sluice::queue
