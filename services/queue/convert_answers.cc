#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/text.h"
#include "services/queue/convert.h"
#include "services/queue/core/group.h"

namespace sluice::queue {
namespace {

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
  rpc::MakeTextValid(out);
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
    for (const TrajectoryRef& member : task.members) {
      ToProto(member, to.add_members());
      if (!task.wants.empty()) ToProto(Want{.owner = member, .names = task.wants}, to.add_wants());
    }
    if (task.members.empty() && !task.wants.empty())
      ToProto(Want{.owner = task.owner, .names = task.wants}, to.add_wants());
    for (const Field& field : task.fields) InlineToProto(field, to.add_fields());
    to.set_finish(static_cast<common::v1::Finish>(task.finish));
    for (const Finish finish : task.finishes)
      to.add_finishes(static_cast<common::v1::Finish>(finish));
    to.set_round(task.round);
    to.set_tries(task.tries);
    *to.mutable_deadline() = rpc::ToProto(task.deadline);
    to.set_generation(task.generation);
  }
  out->mutable_unused()->Add(answer.unused.begin(), answer.unused.end());
}

void ToProto(const RetaskAnswer& answer, v1::RetaskResponse* out) { out->set_count(answer.count); }

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

void ToProto(const DurableAnswer& answer, v1::DurableResponse* out) {
  out->set_repeat(answer.repeat);
}

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
  out->mutable_acceptance()->insert(answer.acceptance.begin(), answer.acceptance.end());
  out->set_advice(answer.advice);
  out->mutable_sampler()->Add(answer.sampler.begin(), answer.sampler.end());
  out->set_answers_saved(answer.answers_saved);
  rpc::MakeTextValid(out);
}

void ToProto(const PeekRow& row, v1::PeekRow* out) {
  ToProto(row.node, out->mutable_node());
  out->set_state(row.state);
  out->set_worker(row.worker);
  *out->mutable_age() = rpc::ToProto(row.age);
  out->set_json(row.json);
  rpc::MakeTextValid(out);
}

void ToProto(const Field& field, common::v1::Field* out) {
  if (field.bytes.size > 0 && field.bytes.size <= kInlineBytes) {
    InlineToProto(field, out);
  } else {
    Describe(field, out);
  }
}

void ToProto(const Record& record, common::v1::Record* out) {
  ToProto(record.owner, out->mutable_owner());
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
