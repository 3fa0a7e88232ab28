#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// AcquireBatch: a rank of the trainer asks for the batch of a step.
namespace sluice::queue {
namespace {
constexpr uint64_t kSliceBytes = 8 << 20;
}  // namespace

void Job::OnAcquireBatch(const Event& event, const AcquireBatch& input) {
  const int64_t version = batches_.version();
  absl::Status status = callers_.CheckCaller(event.caller, WorkerRole::kTrainer);
  if (status.ok()) status = CheckRestored();
  if (status.ok() && input.k < 0)
    status = Error(absl::StatusCode::kInvalidArgument, "BAD_STEP",
                   absl::StrCat("k is ", input.k, ", wanted at least 0"));
  if (status.ok() && input.k > version + 1) {
    status =
        Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
              absl::StrCat("batch ", input.k, " is asked for while step ", version,
                           " is trained; at most batch ", version + 1, " may be fetched ahead"));
  }
  if (!status.ok()) return Answer(event.call, status);
  Park(event, input.wait, input);
}

std::optional<Reply> Job::TryAcquireBatch(const Caller& caller, const AcquireBatch& input) {
  const int64_t k = input.k;
  if (phase_ >= Phase::kClosed)
    return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  if (!failures_.failure().ok()) return failures_.failure();
  if (spec_.max_steps > 0 && k >= spec_.max_steps) {
    return Error(absl::StatusCode::kOutOfRange, "END",
                 absl::StrCat("the job ends with step ", spec_.max_steps - 1));
  }

  // Where a streamed slice ends depends on when it was asked for, so a deterministic job hands out
  // whole batches.
  const bool stream = input.stream && !spec_.deterministic;
  if (k == batches_.next_cut()) FillBatch(k, stream);
  Batch* const batch = batches_.Find(k);
  if (batch == nullptr) {
    if (k < batches_.next_cut())
      return Error(absl::StatusCode::kNotFound, "GONE",
                   absl::StrCat("batch ", k, " is durable and freed"));
    const bool ended = k == batches_.next_cut() && SourcesEnded() && groups_.accepted().empty();
    if (ended) return DescribeEnd(k);
    return std::nullopt;
  }

  if (input.from > batch->groups.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_PLACE",
                 absl::StrCat("from is ", input.from, ", but batch ", k, " has only ",
                              batch->groups.size(), " groups"));
  }
  const bool ready = batch->closed || (stream && batch->groups.size() > input.from);
  if (!ready) return std::nullopt;
  return HandOutSlice(caller, *batch, input.from);
}

// The data is used up before batch k. That is a failure if there is no batch before k, or if all
// rows are quarantined. The message then says what became of the groups.
absl::Status Job::DescribeEnd(int64_t k) const {
  if (k > 0 && prompts_.quarantined() < prompts_.rows()) {
    return Error(absl::StatusCode::kOutOfRange, "END",
                 absl::StrCat("all ", spec_.epochs, " epochs are trained; there is no batch ", k));
  }

  std::string dropped;
  for (const auto& [reason, count] : ledger_.dropped) {
    if (count > 0) absl::StrAppend(&dropped, dropped.empty() ? "" : ", ", count, " as ", reason);
  }
  const Failures::UnscorableRun* const unscorable = failures_.FindLongestUnscorable();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "NOTHING_TRAINED",
       .catalogue = "SLUICE-QUEUE-0010",
       .hint = "see the alarms among `sluice job events`"},
      absl::StrCat(k > 0 ? "every row of the data is quarantined"
                         : "the data is used up and not one group of it could be trained",
                   "; of ", ledger_.accepted,
                   " answers there were dropped: ", dropped.empty() ? "none" : dropped,
                   unscorable == nullptr ? "" : absl::StrCat("; ", unscorable->Describe())));
}

// Hands out the groups of a batch from place `from` on, as many as fit into one answer. If nobody
// holds the batch's lease and the batch is not trained yet, it is granted to the caller.
AcquireBatchAnswer Job::HandOutSlice(const Caller& caller, Batch& batch, uint32_t from) {
  if (!batch.lease && !batch.applied) {
    batch.lease = leases_
                      .Grant({.kind = LeaseKind::kBatch,
                              .batch = batch.k,
                              .worker = caller.worker,
                              .incarnation = caller.incarnation},
                             now_)
                      .id;
  }

  AcquireBatchAnswer answer{.filled = true, .k = batch.k, .from = from, .closed = batch.closed};
  if (batch.lease) answer.lease = {*batch.lease, leases_.ttl()};
  if (batch.closed) {
    answer.size = batch.groups.size();
    answer.crc32c = batch.crc32c;
  }

  // The bytes are estimates: a slice has at least one group, and then stays near kSliceBytes.
  uint64_t bytes = 0;
  uint32_t place = from;
  for (; place < batch.groups.size() && (place == from || bytes < kSliceBytes); ++place) {
    const FrozenGroup& frozen = batch.groups[place];
    const Group& group = *groups_.Find(frozen.id);
    BatchGroup out{.group = frozen.id, .size = frozen.size, .pool = frozen.pool};
    out.row = spec_.rows_only
                  ? ReadRow(group)
                  : Row{.ref = group.own ? group.own->ref : group.row, .source = SourceName(group)};
    for (const FrozenMember& member : frozen.members) {
      const GroupMember& stored = group.members[member.member];
      out.members.push_back({.member = member.member,
                             .attempt = member.attempt,
                             .tokens = member.tokens,
                             .trained = member.trained,
                             .crc32c = member.crc32c,
                             .masked = member.masked,
                             .oldest = member.oldest,
                             .newest = member.newest,
                             .finish = stored.finish});
      for (const auto& [name, field] : stored.fields) {
        if (field.bytes.size <= kInlineBytes) out.members.back().fields.push_back(field);
      }
      bytes += 256 + 16 * member.masked.size() + 128 * out.members.back().fields.size();
    }
    bytes += 128 + out.row.json.size() + 8 * out.pool.size();
    answer.groups.push_back(std::move(out));
  }

  answer.repeat = place <= batch.handed && place > from;
  batch.handed = std::max(batch.handed, place);
  if (answer.repeat) ++counters_.repeats["AcquireBatch"];
  return answer;
}

}  // namespace sluice::queue
