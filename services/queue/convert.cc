#include "services/queue/convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/roots.h"
#include "common/base/status.h"
#include "common/data/generator.h"
#include "common/rpc/access.h"
#include "common/rpc/convert.h"
#include "common/rpc/enums.h"

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

absl::StatusOr<std::vector<Id16>> IdsFrom(
    absl::string_view field, const google::protobuf::RepeatedPtrField<std::string>& all) {
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

absl::Duration WaitFrom(bool set, const google::protobuf::Duration& wait) {
  return set ? rpc::FromProto(wait) : absl::Seconds(30);
}

// The words of the job file's block `queue`.
template <typename T>
using Words = std::initializer_list<std::pair<absl::string_view, T>>;
constexpr Words<Statistic> kStatistics = {{"masked", Statistic::kMasked},
                                          {"strict", Statistic::kStrict}};
constexpr Words<Straggler> kStragglers = {{"wait", Straggler::kWait},
                                          {"drop", Straggler::kDrop},
                                          {"mask", Straggler::kMask},
                                          {"shrink", Straggler::kShrink}};
constexpr Words<Durability> kDurabilities = {{"memory", Durability::kMemory},
                                             {"metadata", Durability::kMetadata},
                                             {"full", Durability::kFull}};

// Sets *value to what `word` means. INVALID_ARGUMENT UNKNOWN_VALUE: this build does not know it.
template <typename T>
absl::Status FromWord(absl::string_view field, const std::string& word, const Words<T>& words,
                      T* value) {
  for (const auto& [name, meaning] : words) {
    if (name != word) continue;
    *value = meaning;
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "UNKNOWN_VALUE",
               absl::StrCat("spec.queue.", field, ": this queue does not know \"", word, "\""));
}

// Copies the job file's block `queue` into the spec.
absl::Status ReadQueueBlock(const job::v1::Queue& in, Spec* spec) {
  spec->groups_per_step = in.groups_per_step();
  spec->max_staleness = in.max_staleness();
  if (in.admission().has_staleness()) spec->admission_staleness = in.admission().staleness();
  if (in.admission().has_min_ess()) spec->min_ess = in.admission().min_ess();
  if (in.admission().has_max_kl()) spec->max_kl = in.admission().max_kl();
  spec->oversample = in.admission().oversample();
  SLUICE_RETURN_IF_ERROR(
      FromWord("admission.statistic", in.admission().statistic(), kStatistics, &spec->statistic));
  SLUICE_RETURN_IF_ERROR(
      FromWord("straggler.policy", in.straggler().policy(), kStragglers, &spec->straggler));
  spec->wait = rpc::FromProto(in.straggler().wait());
  spec->reissues = in.straggler().reissues();
  spec->min_trainable = in.straggler().min_trainable();
  SLUICE_RETURN_IF_ERROR(
      FromWord("keep.durability", in.keep().durability(), kDurabilities, &spec->durability));
  spec->quota_bytes = in.keep().quota();
  spec->lease = rpc::FromProto(in.keep().lease());
  return absl::OkStatus();
}

absl::StatusOr<Spec> SpecFrom(const v1::QueueSpec& in) {
  Spec spec;
  SLUICE_RETURN_IF_ERROR(ReadQueueBlock(in.queue(), &spec));
  spec.seed = in.seed();
  spec.deterministic = in.deterministic();
  spec.policies.assign(in.policies().begin(), in.policies().end());
  spec.group_size = in.group_size();
  spec.group_min = in.group_min();
  spec.first_wave = in.first_wave();
  spec.max_version_span = in.max_version_span();
  spec.max_steps = in.max_steps();
  spec.member_tokens = in.member_tokens();
  spec.token_bytes = in.token_bytes();
  const std::shared_ptr<const Roots> roots = ProcessRoots();
  for (const v1::Source& source : in.sources()) {
    if (roots != nullptr && !IsGeneratorText(source.path()))
      SLUICE_RETURN_IF_ERROR(roots->Check(source.path(), Roots::Access::kRead));
    spec.sources.push_back({.name = source.name(),
                            .path = source.path(),
                            .weight = source.weight(),
                            .fields = {source.fields().begin(), source.fields().end()}});
  }
  spec.sampler = static_cast<Sampler>(in.sampler());
  spec.level_up = in.level_up();
  spec.level_window = in.level_window();
  spec.rest_after = in.rest_after();
  spec.rest_steps = in.rest_steps();
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
  if (job.job().size() != 32 || !FromHex(job.job()).ok())
    return Bad("call.job.job", absl::StrCat("32 hex digits are wanted, not \"", job.job(), "\""));
  if (job.worker().empty()) return Bad("call.job.worker", "is empty");
  return From{job.job(), {job.worker(), job.incarnation()}};
}

absl::StatusOr<From> ReadCaller(const grpc::ServerContextBase& context,
                                const common::v1::Call& call) {
  SLUICE_RETURN_IF_ERROR(rpc::CheckJobRef(context, call.job().worker(), call.job().incarnation()));
  return FromProto(call);
}

absl::StatusOr<Id16> RequestOf(const common::v1::Call& call) {
  return IdFrom("call.request", call.request());
}

absl::StatusOr<SetJob> FromProto(const v1::SetJobRequest& request) {
  SLUICE_RETURN_IF_ERROR(rpc::CheckEnums(request));
  for (const v1::Source& source : request.spec().sources()) {
    if (source.format() != v1::SOURCE_FORMAT_UNSPECIFIED &&
        source.format() != v1::SOURCE_FORMAT_JSONL) {
      return Bad("spec.sources.format",
                 absl::StrCat(v1::SourceFormat_Name(source.format()),
                              " cannot be chosen by name in this build; leave the format out, so "
                              "that the suffix of ",
                              source.path(), " decides"));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(Spec spec, SpecFrom(request.spec()));
  SetJob set{.revision = request.revision(),
             .spec = std::move(spec),
             .phase = static_cast<Phase>(request.phase())};
  for (const common::v1::Worker& worker : request.workers())
    set.workers.push_back({worker.id(), RoleFrom(worker.role()), worker.incarnation()});
  return set;
}

absl::StatusOr<Admit> FromProto(const v1::AdmitRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const Id16 id, RequestOf(request.call()));
  Admit admit{
      .request = id, .room = request.room(), .wait = WaitFrom(request.has_wait(), request.wait())};
  if (request.has_own()) {
    const common::v1::Row& own = request.own();
    admit.own = Row{.ref = {.source = RowRef::kOutside,
                            .epoch = own.epoch(),
                            .index = own.index(),
                            .occurrence = own.occurrence()},
                    .source = own.source(),
                    .json = own.json()};
  }
  return admit;
}

absl::StatusOr<Seal> FromProto(const v1::SealRequest& request) {
  SLUICE_RETURN_IF_ERROR(rpc::CheckEnums(request));
  Seal seal;
  for (const v1::SealItem& item : request.items()) {
    SLUICE_ASSIGN_OR_RETURN(const TrajectoryRef ref, RefFrom(item.ref()));
    SLUICE_ASSIGN_OR_RETURN(const Id16 lease, IdFrom("items.lease", item.lease()));
    seal.items.push_back({.ref = ref,
                          .lease = lease,
                          .tokens = item.tokens(),
                          .crc32c = item.crc32c(),
                          .finish = static_cast<Finish>(item.finish()),
                          .turns = item.turns()});
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
  LeaseTasks lease{.request = id,
                   .generation = request.generation(),
                   .wait = WaitFrom(request.has_wait(), request.wait())};
  for (const v1::Room& room : request.rooms()) lease.rooms.push_back({room.pool(), room.count()});
  lease.earlier.assign(request.earlier().begin(), request.earlier().end());
  for (const v1::RewardVersion& reward : request.rewards())
    lease.rewards[reward.name()] = reward.version();
  return lease;
}

absl::StatusOr<Renew> FromProto(const v1::RenewRequest& request) {
  Renew renew;
  SLUICE_ASSIGN_OR_RETURN(renew.leases, IdsFrom("leases", request.leases()));
  for (const common::v1::Loaded& loaded : request.loaded())
    renew.loaded.push_back({loaded.policy(), rpc::FromProto(loaded.version()), loaded.verified()});
  return renew;
}

absl::StatusOr<Release> FromProto(const v1::ReleaseRequest& request) {
  SLUICE_RETURN_IF_ERROR(rpc::CheckEnums(request));
  Release release{.worker = request.worker(),
                  .incarnation = request.incarnation(),
                  .reason = static_cast<ReleaseReason>(request.reason()),
                  .not_before = rpc::FromProto(request.not_before()),
                  .cause = request.cause()};
  SLUICE_ASSIGN_OR_RETURN(release.leases, IdsFrom("leases", request.leases()));
  return release;
}

absl::StatusOr<AcquireBatch> FromProto(const v1::AcquireBatchRequest& request) {
  return AcquireBatch{.k = request.k(),
                      .from = request.from(),
                      .stream = request.stream(),
                      .wait = WaitFrom(request.has_wait(), request.wait())};
}

absl::StatusOr<queue::Apply> FromProto(const v1::ApplyRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const Id16 lease, IdFrom("lease", request.lease()));
  queue::Apply apply{.k = request.k(),
                     .lease = lease,
                     .crc32c = request.crc32c(),
                     .skipped = request.skipped(),
                     .want_cursor = request.want_cursor()};
  if (request.has_ess()) apply.ess = request.ess();
  if (request.has_kl()) apply.kl = request.kl();
  return apply;
}

absl::StatusOr<AdvanceVersion> FromProto(const v1::AdvanceVersionRequest& request) {
  AdvanceVersion advance{.policy = request.policy(), .next = rpc::FromProto(request.next())};
  if (request.has_expected()) advance.expected = rpc::FromProto(request.expected());
  return advance;
}

absl::StatusOr<Durable> FromProto(const v1::DurableRequest& request) {
  return Durable{
      .version = request.version(), .checkpoint = request.checkpoint(), .hash = request.hash()};
}

absl::StatusOr<Restore> FromProto(const v1::RestoreRequest& request) {
  SLUICE_RETURN_IF_ERROR(rpc::CheckEnums(request));
  return Restore{.cursor = request.cursor(),
                 .checkpoint = request.checkpoint(),
                 .mode = static_cast<RestoreMode>(request.mode())};
}

absl::StatusOr<Retask> FromProto(const v1::RetaskRequest& request) {
  SLUICE_RETURN_IF_ERROR(rpc::CheckEnums(request));
  Retask retask{.mode = static_cast<RetaskMode>(request.mode()),
                .task = request.task(),
                .generation = request.generation()};
  for (const std::string& bytes : request.groups()) {
    SLUICE_ASSIGN_OR_RETURN(const Id16 id, IdFrom("groups", bytes));
    retask.groups.push_back(GroupId::From(id));
  }
  return retask;
}

absl::StatusOr<Want> FromProto(const common::v1::Want& in) {
  SLUICE_ASSIGN_OR_RETURN(TrajectoryRef owner, RefFrom(in.owner()));
  return Want{.owner = std::move(owner),
              .names = {in.names().begin(), in.names().end()},
              .from = in.from(),
              .to = in.to()};
}

// Put. --------------------------------------------------------------------------------------------

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
  if (!common::v1::SegmentRole_IsValid(piece.role()))
    return Bad("piece.role",
               absl::StrCat(static_cast<int>(piece.role()), " is not a role in this build"));
  record.piece = Piece{.at = piece.at(),
                       .segment = piece.segment(),
                       .role = static_cast<SegmentRole>(piece.role()),
                       .turn = piece.turn(),
                       .count = piece.count(),
                       .trainable = piece.trainable()};
  if (piece.has_parent()) record.piece->parent = piece.parent();
  if (piece.has_duration()) record.piece->duration = rpc::FromProto(piece.duration());
  for (const common::v1::VersionRun& run : piece.runs())
    record.piece->runs.push_back(rpc::FromProto(run));
  return record;
}
}  // namespace

namespace {
bool SameRecord(const Record& a, const Record& b) {
  const bool piece = a.piece.has_value() == b.piece.has_value() &&
                     (!a.piece || (a.piece->at == b.piece->at && a.piece->count == b.piece->count));
  return piece && a.owner.group == b.owner.group && a.owner.member == b.owner.member &&
         a.owner.attempt == b.owner.attempt && a.task == b.task && a.lease == b.lease;
}

// Checks that the sizes of the fields sum to the payload; otherwise it would be unknown where a
// field ends.
absl::Status CheckSizes(const v1::PutHeader& header, const rpc::Frame& frame) {
  uint64_t payload = 0;
  for (const common::v1::Record& record : header.records()) {
    for (const common::v1::Field& field : record.fields()) {
      const bool in_place = !field.inline_().empty();
      if (in_place && field.inline_().size() != field.bytes())
        return Bad("fields.inline", absl::StrCat(field.name(), " says ", field.bytes(),
                                                 " bytes, carries ", field.inline_().size()));
      if (!in_place && field.bytes() > frame.payload_bytes())
        return Bad("fields.bytes",
                   absl::StrCat(field.name(), " says ", field.bytes(),
                                " bytes, but the payload has ", frame.payload_bytes()));
      payload += in_place ? 0 : field.bytes();
    }
  }
  if (payload != frame.payload_bytes())
    return Bad("payload", absl::StrCat("the fields say ", payload, " bytes, but it has ",
                                       frame.payload_bytes()));
  return absl::OkStatus();
}

bool IsCut(const common::v1::Field& field) { return field.total() != 0 || field.from() != 0; }
}  // namespace

// Copies one field to `offset` of `memory`. The part of a field that is cut over messages is copied
// after the parts that have come already.
absl::Status RecordReader::ReadField(const common::v1::Field& in, rpc::PayloadReader* payload,
                                     std::shared_ptr<char> memory, uint64_t offset,
                                     Partial* partial) {
  char* to = memory == nullptr ? nullptr : memory.get() + offset;
  if (in.from() > 0) {
    const bool follows = !partial->record.fields.empty() &&
                         partial->record.fields.back().name == in.name() &&
                         partial->filled == in.from() && partial->total == in.total();
    if (!follows || in.bytes() > partial->total - partial->filled) {
      return Bad("fields.from",
                 absl::StrCat(in.name(), " goes on at ", in.from(), " of ", in.total(), " bytes; ",
                              partial->filled, " of ", partial->total, " have come"));
    }
    to = partial->memory.get() + partial->filled;
  } else if (partial->filled != partial->total) {
    return Bad("fields.from",
               absl::StrCat(in.name(), " begins where ", partial->total - partial->filled,
                            " bytes of the field before it are missing"));
  } else if (in.total() > 0) {
    if (in.bytes() > in.total())
      return Bad("fields.total",
                 absl::StrCat(in.name(), " carries ", in.bytes(), " of ", in.total(), " bytes"));
    memory = arena_->Allocate(in.total());
    to = memory.get();
  }

  uint32_t crc = 0;
  if (in.inline_().empty()) {
    SLUICE_ASSIGN_OR_RETURN(crc, payload->Copy(in.bytes(), to));
  } else {
    crc = Crc32cCopy(in.inline_(), to);
  }
  if (crc != in.crc32c())
    return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                 absl::StrCat("field ", in.name(), " has CRC ", crc, ", not ", in.crc32c()));

  if (in.from() > 0) {
    Bytes& whole = partial->record.fields.back().bytes;
    whole.crc32c = Crc32cConcat(whole.crc32c, crc, in.bytes());
    partial->filled += in.bytes();
    SLUICE_CHECK(partial->filled <= partial->total);
    return absl::OkStatus();
  }
  partial->record.fields.push_back({.name = in.name(),
                                    .dtype = in.dtype(),
                                    .shape = {in.shape().begin(), in.shape().end()},
                                    .rows = {in.rows().begin(), in.rows().end()},
                                    .round = in.round(),
                                    .bytes = {.data = std::shared_ptr<const char>(memory, to),
                                              .size = in.total() > 0 ? in.total() : in.bytes(),
                                              .crc32c = crc}});
  partial->filled = in.bytes();
  partial->total = in.total() > 0 ? in.total() : in.bytes();
  partial->memory = std::move(memory);
  return absl::OkStatus();
}

// Returns the record to which `in` belongs: a new one, or the one whose earlier parts have come
// already.
RecordReader::Partial RecordReader::BeginRecord(const common::v1::Record& in, bool first) {
  absl::StatusOr<Record> record = RecordFrom(in);
  const absl::Status status = record.status();
  Partial partial;
  if (first && partial_) {
    partial = *std::move(partial_);
    partial_.reset();
    if (partial.status.ok() && record.ok() && !SameRecord(partial.record, *record))
      partial.status = Bad("records.more", "a different record follows an incomplete one");
    partial.record.last = in.last();
  } else if (record.ok()) {
    partial.record = *std::move(record);
  }
  if (partial.status.ok()) partial.status = status;
  return partial;
}

void RecordReader::ReadFields(const common::v1::Record& in, rpc::PayloadReader* payload,
                              Partial* partial) {
  uint64_t here = 0;  // Size of the fields that are not cut; one allocation holds them all.
  for (const common::v1::Field& field : in.fields()) {
    here += IsCut(field) ? 0 : field.bytes();
    partial->bytes += field.from() > 0 ? 0 : std::max(field.bytes(), field.total());
  }
  if (partial->status.ok() && partial->bytes > record_bytes_) {
    partial->status =
        Error(absl::StatusCode::kResourceExhausted, "OVER_RESERVATION",
              absl::StrCat(partial->record.owner.str(), ": the record has at least ",
                           partial->bytes, " B, but a member reserves ", record_bytes_, " B"));
  }

  const std::shared_ptr<char> memory =
      partial->status.ok() && here > 0 ? arena_->Allocate(here) : nullptr;
  uint64_t offset = 0;
  for (const common::v1::Field& field : in.fields()) {
    // A field that is refused is skipped, so that the next one is read from its own place.
    const size_t left_after = payload->left() - (field.inline_().empty() ? field.bytes() : 0);
    if (partial->status.ok()) partial->status = ReadField(field, payload, memory, offset, partial);
    payload->Skip(payload->left() - left_after);
    offset += IsCut(field) ? 0 : field.bytes();
  }
}

absl::StatusOr<PutBatch> RecordReader::Read(const v1::PutHeader& header, const rpc::Frame& frame) {
  SLUICE_RETURN_IF_ERROR(CheckSizes(header, frame));
  rpc::PayloadReader payload(frame);
  PutBatch batch;
  for (int i = 0; i < header.records_size(); ++i) {
    const common::v1::Record& in = header.records(i);
    Partial partial = BeginRecord(in, i == 0);
    ReadFields(in, &payload, &partial);

    if (partial.status.ok() && in.more() && i + 1 != header.records_size())
      partial.status =
          Bad("records.more", "only the last record of a message may go on in the next one");
    if (partial.status.ok() && !in.more() && partial.filled != partial.total) {
      partial.status =
          Bad("fields.total",
              absl::StrCat(partial.total - partial.filled,
                           " bytes of a field are missing, and no more of its record follows"));
    }

    if (!partial.status.ok()) {
      batch.failed.push_back({.record = static_cast<uint32_t>(i), .status = partial.status});
    } else if (!in.more()) {
      batch.places.push_back(i);
      batch.records.push_back(std::move(partial.record));
    }
    if (in.more()) partial_ = std::move(partial);
  }
  return batch;
}

}  // namespace sluice::queue
