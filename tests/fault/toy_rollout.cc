#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/id.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_watch.h"
#include "tests/fault/toy.h"

namespace sluice::fault {
namespace {

// Longer than what a record may carry inline, so it travels as payload.
std::string Messages(const std::string& group, uint32_t member) {
  return absl::StrCat("[\"", ToHex(group), " ", ToHex(group), " ", ToHex(group), ".", member,
                      "\"]");
}

class Rollout {
 public:
  explicit Rollout(const RoleOptions& options)
      : client_(Connect(options)),
        history_(options.dir, options.worker, options.incarnation),
        keeper_(client_.get(), {}),
        stream_(client_.get()),
        watch_(client_.get(),
               {.on_change = [this](const queue::v1::WatchResponse& change) { OnWatch(change); }}) {
  }

  absl::Status Run() {
    LoadWeights();
    while (true) {
      queue::v1::AdmitRequest request;
      request.set_room(4);
      request.mutable_wait()->set_nanos(200'000'000);
      history_.Log("ask admit");
      const auto admitted = client_->Admit(request);

      // The queue was started again and does not know yet which version this engine holds.
      if (ReasonOf(admitted.status()) == "NOT_YET") {
        LoadWeights(/*again=*/true);
        continue;
      }
      SLUICE_RETURN_IF_ERROR(admitted.status());

      for (const queue::v1::Grant& grant : admitted->grants()) {
        for (const queue::v1::Member& member : grant.members()) {
          keeper_.Hold(member.lease().id());
          history_.Log(absl::StrCat("grant ", ToHex(grant.group()), ".", member.member(), " ",
                                    member.attempt(), " ", member.prefix()));
        }
      }

      SLUICE_FAILPOINT("toy.rollout.granted");
      for (const queue::v1::Grant& grant : admitted->grants()) {
        for (const queue::v1::Member& member : grant.members())
          SLUICE_RETURN_IF_ERROR(Sample(grant, member));
      }

      LoadWeights();
    }
  }

 private:
  void OnWatch(const queue::v1::WatchResponse& change) {
    MutexLock lock(&mu_);
    if (change.published_size() == 0 && change.queue_incarnation() == incarnation_) return;
    if (change.queue_incarnation() > 0) incarnation_ = change.queue_incarnation();
    if (change.published_size() > 0) published_ = change.published(0);
    ++changes_;
    changed_.NotifyAll();
  }

  // Takes the newest published version as its weights; waits for the first one.
  void LoadWeights(bool again = false) {
    {
      MutexLock lock(&mu_);
      while (changes_ == 0 || !published_.has_version()) changed_.Wait(&mu_);
      if (!again && changes_ == loaded_changes_) return;
      loaded_changes_ = changes_;
      loaded_ = published_;
    }

    loaded_.set_verified(true);
    keeper_.SetLoaded({loaded_});
    (void)keeper_.Sync();
  }

  common::v1::TrajectoryRef Ref(const queue::v1::Grant& grant, const queue::v1::Member& member) {
    common::v1::TrajectoryRef ref;
    ref.set_group(grant.group());
    ref.set_member(member.member());
    ref.set_attempt(member.attempt());
    return ref;
  }

  // Puts a record and waits for its outcome. LEASE_LOST and the like mean that the trajectory does
  // not belong to this worker any more.
  absl::Status Put(const common::v1::Record& record, const std::string& payload) {
    absl::Status outcome;
    SLUICE_RETURN_IF_ERROR(stream_.Put(
        record, payload, [&outcome](const PutOutcome& acked) { outcome = acked.status; }));

    SLUICE_RETURN_IF_ERROR(stream_.Flush());
    return outcome;
  }

  // Samples one member to its end. A queue that comes back at durability `metadata` has lost what
  // it held of running trajectories; then the whole member is written once more.
  absl::Status Sample(const queue::v1::Grant& grant, const queue::v1::Member& member) {
    absl::Status status = WriteMember(grant, member, member.prefix());
    while (ReasonOf(status) == "NOT_YET") status = WriteMember(grant, member, 0);

    keeper_.Forget(member.lease().id());

    if (absl::IsAborted(status) && ReasonOf(status) == "FENCED") return status;
    // The member belongs to another worker now.
    if (absl::IsAborted(status) || absl::IsNotFound(status)) return absl::OkStatus();
    return status;
  }

  absl::Status WriteMember(const queue::v1::Grant& grant, const queue::v1::Member& member,
                           uint64_t prefix) {
    const std::string& group = grant.group();
    const std::string name =
        absl::StrCat(ToHex(group), ".", member.member(), " ", member.attempt());

    common::v1::Record record;
    std::string payload;

    record.mutable_owner()->set_group(group);
    record.set_lease(member.lease().id());
    record.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_PROMPT);
    record.mutable_piece()->set_count(kPromptTokens);
    AddField("tokens", common::v1::DTYPE_I32, {int64_t{kPromptTokens}},
             Tokens(group, -1, 0, kPromptTokens), &record, &payload);
    SLUICE_RETURN_IF_ERROR(Put(record, payload));

    const std::vector<uint64_t> ends = PieceEnds(group, static_cast<int>(member.member()));
    uint64_t at = std::max<uint64_t>(kPromptTokens, prefix);
    for (const uint64_t end : ends) {
      if (end <= at) continue;
      SLUICE_RETURN_IF_ERROR(PutPiece(grant, member, at, end));
      history_.Log(absl::StrCat("put ", name, " ", end));
      SLUICE_FAILPOINT("toy.rollout.put");
      at = end;
    }

    record.Clear();
    payload.clear();
    *record.mutable_owner() = Ref(grant, member);
    record.set_lease(member.lease().id());

    const std::string messages = Messages(group, member.member());
    AddField("messages", common::v1::DTYPE_U8, {static_cast<int64_t>(messages.size())}, messages,
             &record, &payload);
    SLUICE_RETURN_IF_ERROR(Put(record, payload));

    SLUICE_FAILPOINT("toy.rollout.before_seal");

    queue::v1::SealRequest seal;
    queue::v1::SealItem& item = *seal.add_items();
    *item.mutable_ref() = Ref(grant, member);
    item.set_lease(member.lease().id());
    item.set_tokens(at);
    const int m = static_cast<int>(member.member());
    item.set_crc32c(Crc32c(absl::StrCat(Tokens(group, m, kPromptTokens, at - kPromptTokens),
                                        Logprobs(group, m, kPromptTokens, at - kPromptTokens))));
    item.set_finish(common::v1::FINISH_STOP);
    item.set_turns(1);

    keeper_.Forget(member.lease().id());
    SLUICE_ASSIGN_OR_RETURN(const queue::v1::SealResponse sealed, client_->Seal(seal));

    if (const uint32_t code = sealed.items(0).code(); code != 0) {
      return Error(static_cast<absl::StatusCode>(code), sealed.items(0).reason(),
                   absl::StrCat("Seal of ", name, ": ", sealed.items(0).reason()));
    }

    history_.Log("seal " + name);
    history_.Ready();
    SLUICE_FAILPOINT("toy.rollout.sealed");

    return absl::OkStatus();
  }

  absl::Status PutPiece(const queue::v1::Grant& grant, const queue::v1::Member& member, uint64_t at,
                        uint64_t end) {
    LoadWeights();  // Like an engine that changes its weights between two tokens.

    common::v1::Record record;
    std::string payload;
    *record.mutable_owner() = Ref(grant, member);
    record.set_lease(member.lease().id());

    common::v1::Piece& piece = *record.mutable_piece();
    piece.set_at(at);
    piece.set_segment(1);
    piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
    piece.set_trainable(true);
    piece.set_count(static_cast<uint32_t>(end - at));

    common::v1::VersionRun& run = *piece.add_runs();
    *run.mutable_version() = loaded_.version();
    run.set_count(piece.count());

    const int m = static_cast<int>(member.member());
    const int64_t count = piece.count();
    AddField("tokens", common::v1::DTYPE_I32, {count}, Tokens(grant.group(), m, at, count), &record,
             &payload);
    AddField("logprobs", common::v1::DTYPE_F32, {count}, Logprobs(grant.group(), m, at, count),
             &record, &payload);

    return Put(record, payload);
  }

  const std::unique_ptr<QueueClient> client_;
  History history_;
  LeaseKeeper keeper_;
  PutStream stream_;
  Mutex mu_;
  CondVar changed_;
  common::v1::Loaded published_ ABSL_GUARDED_BY(mu_);
  int64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;  // The queue's.
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t loaded_changes_ = 0;
  common::v1::Loaded loaded_;
  QueueWatch watch_;
};

}  // namespace

absl::Status RunRollout(const RoleOptions& options) { return Rollout(options).Run(); }

absl::Status RunReward(const RoleOptions& options) {
  const std::unique_ptr<QueueClient> client = Connect(options);
  History history(options.dir, options.worker, options.incarnation);

  LeaseKeeper keeper(client.get(), {});
  PutStream stream(client.get());

  while (true) {
    queue::v1::LeaseTasksRequest request;
    request.mutable_wait()->set_nanos(200'000'000);
    queue::v1::Room& room = *request.add_rooms();
    room.set_pool("cpu");
    room.set_count(4);

    SLUICE_ASSIGN_OR_RETURN(const queue::v1::LeaseTasksResponse leased,
                            client->LeaseTasks(request));
    for (const queue::v1::Task& task : leased.tasks()) keeper.Hold(task.lease().id());
    if (leased.tasks_size() > 0) SLUICE_FAILPOINT("toy.reward.leased");

    for (const queue::v1::Task& task : leased.tasks()) {
      std::vector<common::v1::Want> missing;
      const auto got = client->GetAll(
          task.lease().id(),
          std::vector<common::v1::Want>(task.wants().begin(), task.wants().end()), &missing);

      keeper.Forget(task.lease().id());
      if (absl::IsAborted(got.status()) && ReasonOf(got.status()) != "FENCED") continue;
      SLUICE_RETURN_IF_ERROR(got.status());
      if (!missing.empty()) continue;

      const std::string& group = task.owner().group();

      std::vector<std::string> fields;
      for (const QueueClient::Fetched& fetched : *got)
        fields.insert(fields.end(), fetched.fields.begin(), fetched.fields.end());
      if (fields != std::vector<std::string>{Messages(group, task.owner().member())}) {
        return absl::DataLossError(absl::StrCat(
            "messages of ", ToHex(group), ".", task.owner().member(), " are not what was put, but ",
            fields.size(), " fields: ", absl::StrJoin(fields, ", ")));
      }

      common::v1::Record record;
      *record.mutable_owner() = task.owner();
      record.set_task(task.id());
      record.set_lease(task.lease().id());
      record.set_last(true);
      const double reward = task.owner().member();
      AddInlineField("reward_status", common::v1::DTYPE_U8, "ok", &record);
      AddInlineField("task_reward", common::v1::DTYPE_F64,
                     {reinterpret_cast<const char*>(&reward), sizeof(reward)}, &record);

      SLUICE_FAILPOINT("toy.reward.before_put");

      absl::Status outcome;
      SLUICE_RETURN_IF_ERROR(
          stream.Put(record, "", [&outcome](const PutOutcome& acked) { outcome = acked.status; }));
      SLUICE_RETURN_IF_ERROR(stream.Flush());

      if (!outcome.ok() && !absl::IsAborted(outcome) && !absl::IsNotFound(outcome)) return outcome;

      if (outcome.ok())
        history.Log(absl::StrCat("score ", ToHex(group), ".", task.owner().member())),
            history.Ready();
      SLUICE_FAILPOINT("toy.reward.scored");
    }
  }
}

}  // namespace sluice::fault
