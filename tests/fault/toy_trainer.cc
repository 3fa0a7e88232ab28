#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/queue_client/lease_keeper.h"
#include "tests/fault/toy.h"

namespace sluice::fault {
namespace {

bool IsMasked(const queue::v1::BatchMember& member, uint64_t place) {
  for (const auto& run : member.masked()) {
    if (place >= run.first() && place < run.first() + run.count()) return true;
  }
  return false;
}

void Append32(uint32_t value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void Append64(uint64_t value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Reads a member of batch k as a trainer would, and checks every byte: tokens and log-probs must be
// what the rollout wrote, and no trained token may come from weights more than max_staleness
// versions old. Adds the bytes and the mask to `digest`, and the member, in the form that the
// ledger hashes, to `canonical`.
absl::Status ReadMember(const RoleOptions& options, QueueClient* client,
                        const queue::v1::Batch& batch, const std::string& group,
                        const queue::v1::BatchMember& member, Sha256Stream* digest,
                        std::string* canonical) {
  const std::string name =
      absl::StrCat("batch ", batch.k(), " ", ToHex(group), " ", member.member());

  common::v1::Want want;
  want.mutable_owner()->set_group(group);
  want.mutable_owner()->set_member(member.member());
  want.mutable_owner()->set_attempt(member.attempt());
  want.add_names("tokens");
  want.add_names("logprobs");
  SLUICE_ASSIGN_OR_RETURN(const std::vector<QueueClient::Fetched> pieces,
                          client->GetAll(batch.lease().id(), {&want, 1}));

  const int m = static_cast<int>(member.member());
  uint64_t at = kPromptTokens, trained = 0;
  std::string tokens, logprobs;

  digest->Update(absl::StrCat(ToHex(group), ".", m, ".", member.attempt(), ":"));
  for (const QueueClient::Fetched& fetched : pieces) {
    const common::v1::Piece& piece = fetched.record.piece();
    if (piece.role() != common::v1::SEGMENT_ROLE_SAMPLED) continue;
    if (piece.at() != at || fetched.fields.size() != 2)
      return absl::DataLossError(
          absl::StrCat(name, " has a piece at ", piece.at(), ", wanted ", at));
    if (fetched.fields[0] != Tokens(group, m, at, piece.count()) ||
        fetched.fields[1] != Logprobs(group, m, at, piece.count())) {
      return absl::DataLossError(absl::StrCat(name, ": bytes at ", at, " are not what was put"));
    }

    for (const std::string& field : fetched.fields) digest->Update(field);
    tokens += fetched.fields[0];
    logprobs += fetched.fields[1];

    for (const auto& run : piece.runs()) {
      for (uint64_t i = 0; i < run.count(); ++i, ++at) {
        if (IsMasked(member, at)) {
          digest->Update("m");
          continue;
        }
        ++trained;
        if (batch.k() - run.version().number() > options.max_staleness) {
          return absl::InternalError(absl::StrCat(name, " trains a token of version ",
                                                  run.version().number(), ", max_staleness is ",
                                                  options.max_staleness));
        }
      }
    }
  }

  if (at != PieceEnds(group, m).back() || at != member.tokens())
    return absl::DataLossError(
        absl::StrCat(name, " has ", at, " tokens, not ", PieceEnds(group, m).back()));

  if (trained != member.trained())
    return absl::DataLossError(absl::StrCat(name, " has ", trained,
                                            " tokens to train, the batch says ", member.trained()));

  canonical->append(group);
  Append32(member.member(), canonical);
  Append32(member.attempt(), canonical);
  Append32(Crc32c(tokens + logprobs), canonical);
  Append32(static_cast<uint32_t>(member.masked_size()), canonical);
  for (const auto& run : member.masked())
    Append64(run.first(), canonical), Append64(run.count(), canonical);
  return absl::OkStatus();
}

// Acquires batch k and waits until all of it is there.
absl::StatusOr<queue::v1::Batch> Acquire(QueueClient* client, int64_t k) {
  while (true) {
    queue::v1::AcquireBatchRequest request;
    request.set_k(k);
    request.mutable_wait()->set_nanos(200'000'000);
    SLUICE_ASSIGN_OR_RETURN(const queue::v1::AcquireBatchResponse answer,
                            client->AcquireBatch(request));

    if (answer.has_batch() && answer.batch().closed() &&
        answer.batch().groups_size() == static_cast<int>(answer.batch().size()))
      return answer.batch();
  }
}

// Publishes the weights of version `number`. The expected version lets only one trainer at a time
// publish.
absl::Status Publish(QueueClient* client, const RoleOptions& options, int64_t number,
                     common::v1::PolicyVersion* published) {
  queue::v1::AdvanceVersionRequest advance;
  if (published->incarnation() > 0) *advance.mutable_expected() = *published;
  advance.mutable_next()->set_incarnation(options.incarnation);
  advance.mutable_next()->set_number(number);
  advance.set_state(std::string(16, 's'));
  advance.set_manifest(std::string(32, 'm'));

  SLUICE_ASSIGN_OR_RETURN(const queue::v1::AdvanceVersionResponse answer,
                          client->AdvanceVersion(advance));
  *published = answer.current();
  return absl::OkStatus();
}

// A trainer whose batch lease ran out asks again, and gets the same batch.
bool IsLeaseLost(const absl::Status& status) {
  return absl::IsAborted(status) && ReasonOf(status) == "LEASE_LOST";
}

}  // namespace

absl::Status RunTrainer(const RoleOptions& options) {
  const std::unique_ptr<QueueClient> client = Connect(options);
  History history(options.dir, options.worker, options.incarnation);
  LeaseKeeper keeper(client.get(), {});

  SLUICE_ASSIGN_OR_RETURN(Checkpoint state, LoadCheckpoint(options.dir));

  queue::v1::RestoreRequest restore;
  restore.set_cursor(state.cursor);
  if (state.version > 0) restore.set_checkpoint(absl::StrCat("checkpoint-", state.version));
  restore.set_mode(queue::v1::RESTORE_MODE_REPLAY);
  SLUICE_ASSIGN_OR_RETURN(const queue::v1::RestoreResponse restored, client->Restore(restore));

  if ((restored.mode() != queue::v1::RESTORE_MODE_REPLAY && options.durability == "full") ||
      restored.version() != state.version) {
    return absl::DataLossError(absl::StrCat("Restore of version ", state.version, " gave mode ",
                                            restored.mode(), ", version ", restored.version()));
  }

  history.Log(absl::StrCat("restore ", state.version, " ", restored.end()));

  common::v1::PolicyVersion published;
  if (restored.published_size() > 0) published = restored.published(0).version();

  SLUICE_FAILPOINT("toy.trainer.restored");
  SLUICE_RETURN_IF_ERROR(Publish(client.get(), options, state.version, &published));

  while (true) {
    const int64_t k = state.version;
    SLUICE_ASSIGN_OR_RETURN(const queue::v1::Batch batch, Acquire(client.get(), k));
    keeper.Hold(batch.lease().id());
    SLUICE_FAILPOINT("toy.trainer.acquired");

    Sha256Stream stream;
    std::string canonical;
    absl::Status read;
    for (const queue::v1::BatchGroup& group : batch.groups()) {
      for (const queue::v1::BatchMember& member : group.members()) {
        if (read.ok())
          read =
              ReadMember(options, client.get(), batch, group.group(), member, &stream, &canonical);
      }
    }

    keeper.Forget(batch.lease().id());
    if (IsLeaseLost(read)) continue;
    SLUICE_RETURN_IF_ERROR(read);

    const std::string digest = stream.Finish();
    SLUICE_FAILPOINT("toy.trainer.before_apply");

    const bool checkpoint = (k + 1) % options.checkpoint_every == 0;
    queue::v1::ApplyRequest apply;
    apply.set_k(k);
    apply.set_lease(batch.lease().id());
    apply.set_crc32c(batch.crc32c());
    apply.set_want_cursor(checkpoint);

    history.Log(absl::StrCat("ask apply ", k));
    const auto applied = client->Apply(apply);
    if (IsLeaseLost(applied.status())) continue;
    SLUICE_RETURN_IF_ERROR(applied.status());

    state.weights = NextWeights(state.weights, k, digest);
    state.version = k + 1;
    state.cursor = applied->cursor();
    history.Log(absl::StrCat("train ", k, " ", ToHex(digest), " ", ToHex(canonical), " ",
                             ToHex(applied->ledger().hash())));
    history.Ready();
    SLUICE_FAILPOINT("toy.trainer.applied");

    SLUICE_RETURN_IF_ERROR(Publish(client.get(), options, state.version, &published));
    if (!checkpoint) continue;
    SLUICE_FAILPOINT("toy.trainer.before_checkpoint");

    SLUICE_RETURN_IF_ERROR(SaveCheckpoint(options.dir, state));
    SLUICE_FAILPOINT("toy.trainer.checkpointed");

    queue::v1::DurableRequest durable;
    durable.set_version(state.version);
    durable.set_checkpoint(absl::StrCat("checkpoint-", state.version));
    durable.set_hash(applied->ledger().hash());
    SLUICE_RETURN_IF_ERROR(client->Durable(durable).status());
    history.Log(absl::StrCat("durable ", state.version));
    SLUICE_FAILPOINT("toy.trainer.durable");

    if (PathExists(options.dir + "/stop")) return absl::OkStatus();
  }
}

}  // namespace sluice::fault
