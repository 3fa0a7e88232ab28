#include "services/rollout/streamer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/convert.h"
#include "services/rollout/convert.h"

namespace sluice::rollout {
namespace {

// Time between two scans of all members for old tokens.
constexpr absl::Duration kScan = absl::Milliseconds(500);
constexpr size_t kMaxPiece = 512 << 10;  // Most bytes of tokens in one record.
constexpr size_t kMaxInline = 64;  // Most bytes of a field that is put into the record itself.
constexpr int kMaxItems = 1000;    // Most items of one Seal, Drop or Release.
constexpr uint32_t kPromptSegment = 0, kAnswerSegment = 1;

template <typename T>
absl::string_view Bytes(absl::Span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

Streamer::Streamer(Options options, QueueClient* client, LeaseKeeper* leases, PutStream* puts,
                   const PromptRenderer* renderer, const Metrics& metrics,
                   std::function<void(absl::Status why)> failed)
    : options_(std::move(options)),
      client_(client),
      leases_(leases),
      puts_(puts),
      renderer_(renderer),
      metrics_(metrics),
      failed_(std::move(failed)) {}

Streamer::~Streamer() { Stop(); }

void Streamer::Start(StepLoop* loop) {
  loop_ = loop;
  thread_ = std::thread([this] { Run(); });
}

// On other threads. -------------------------------------------------------------------------------

void Streamer::AddMembers(std::vector<Member> members) {
  MutexLock lock(&mu_);
  granted_ += members.size();
  for (Member& member : members) inbox_.granted.push_back(std::move(member));
  changed_.NotifyOne();
}

void Streamer::AddDrops(std::vector<queue::v1::DropItem> items) {
  MutexLock lock(&mu_);
  for (queue::v1::DropItem& item : items) inbox_.drops.push_back(std::move(item));
  changed_.NotifyOne();
}

void Streamer::AddStep(StepEvents events) {
  MutexLock lock(&mu_);
  new_tokens_ += events.tokens.size();
  inbox_.steps.push_back(std::move(events));
  UpdatePause();
  changed_.NotifyOne();
}

void Streamer::AddLostLeases(const std::vector<std::string>& leases) {
  MutexLock lock(&mu_);
  inbox_.lost.insert(inbox_.lost.end(), leases.begin(), leases.end());
  changed_.NotifyOne();
}

void Streamer::AddCancelHints(std::vector<queue::v1::CancelHint> hints) {
  MutexLock lock(&mu_);
  for (queue::v1::CancelHint& hint : hints) inbox_.cancelled.push_back(std::move(hint));
  changed_.NotifyOne();
}

size_t Streamer::AwaitRoom(size_t limit) {
  MutexLock lock(&mu_);
  while (true) {
    if (closed_ || stopped_ || ended_) return 0;
    // An answer that has ended frees its slot, but takes memory until it is sealed. The second
    // condition bounds their number if the queue seals more slowly than the engine samples.
    const size_t sampling = sampling_count_ + granted_, unsealed = member_count_ + granted_;
    if (sampling < limit && unsealed < 4 * limit) return limit - sampling;
    counted_.Wait(&mu_);
  }
}

void Streamer::CloseRoom() {
  MutexLock lock(&mu_);
  closed_ = true;
  counted_.NotifyAll();
}

bool Streamer::AwaitEmpty(absl::Duration timeout) {
  const absl::Duration until = Clock::Real()->Monotonic() + timeout;
  MutexLock lock(&mu_);
  while (member_count_ + granted_ > 0 && !stopped_ && !ended_) {
    const absl::Duration left = until - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) return false;
    counted_.WaitFor(&mu_, left);
  }
  return member_count_ + granted_ == 0;
}

bool Streamer::FlushPieces(absl::Duration timeout) {
  const absl::Duration until = Clock::Real()->Monotonic() + timeout;
  MutexLock lock(&mu_);
  inbox_.flush = true;
  flushed_ = false;
  changed_.NotifyOne();
  while (!flushed_ && !stopped_ && !ended_) {
    const absl::Duration left = until - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) return false;
    counted_.WaitFor(&mu_, left);
  }
  return true;
}

void Streamer::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
    counted_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::vector<std::string> Streamer::leases() const {
  std::vector<std::string> leases;
  for (const auto& [request, state] : members_) leases.push_back(state.member.lease);
  return leases;
}

// On the stream thread. ---------------------------------------------------------------------------

void Streamer::Run() {
  while (true) {
    Inbox inbox = TakeInbox();
    {
      MutexLock lock(&mu_);
      if (stopped_) return;
    }

    // Members first: the steps of the same inbox may have their tokens.
    TakeGranted(std::move(inbox.granted));
    for (const StepEvents& step : inbox.steps) TakeStep(step);
    for (const Ack& ack : inbox.acks) TakeAck(ack);
    for (const std::string& lease : inbox.lost) {
      if (const auto it = by_lease_.find(lease); it != by_lease_.end())
        Abandon(it->second, AbortReason::kLeaseLost, "lease lost");
    }
    for (const queue::v1::CancelHint& hint : inbox.cancelled) TakeCancelled(hint);
    for (queue::v1::DropItem& item : inbox.drops) drops_.push_back(std::move(item));

    // A scan sends old tokens, and what an earlier attempt could not send because the PutStream was
    // full.
    const absl::Duration now = Clock::Real()->Monotonic();
    const bool scan = now - last_scan_ >= kScan;
    if (scan || inbox.flush) {
      last_scan_ = now;
      for (auto& [request, state] : members_) {
        const Trajectory& trajectory = state.member.trajectory;
        const bool old = trajectory.unsent() > 0 && now - state.oldest_unsent >= options_.piece_age;
        const bool ended = trajectory.finish() != FinishReason::kNone &&
                           state.messages == MemberState::Messages::kNone;
        if (old || ended || inbox.flush) SendPieces(request, state, /*all=*/true);
      }
      UpdateMetrics();
      GiveBackIfStanding(now);
    }

    for (uint64_t request : std::exchange(unsent_, {})) {
      const auto it = members_.find(request);
      if (it != members_.end())
        SendPieces(
            request, it->second,
            it->second.leaves || it->second.member.trajectory.finish() != FinishReason::kNone);
    }

    // The counts are set before the calls to the queue too, since those may take long.
    SetCounts();
    absl::Status status = SealFinished();
    if (status.ok()) status = ReleaseLeaving();
    if (status.ok()) status = SendDrops(std::exchange(drops_, {}));
    SetCounts();

    if (inbox.flush) {
      MutexLock lock(&mu_);
      flushed_ = true;
      counted_.NotifyAll();
    }
    if (!status.ok() && !absl::IsCancelled(status)) {
      log::Error("stream_ended", {{"job_id", options_.job_name}, {"error", status}});
      {
        MutexLock lock(&mu_);
        ended_ = true;
        counted_.NotifyAll();
      }
      return failed_(status);
    }
  }
}

// Takes the inbox when there is something in it, or when a scan is due.
Streamer::Inbox Streamer::TakeInbox() {
  MutexLock lock(&mu_);
  const absl::Duration until = last_scan_ + kScan;
  while (inbox_.empty() && !stopped_) {
    const absl::Duration left = until - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) break;
    changed_.WaitFor(&mu_, left);
  }
  unacked_ += std::exchange(new_tokens_, 0);
  return std::exchange(inbox_, Inbox());
}

void Streamer::SetCounts() {
  size_t unacked = 0;
  for (const auto& [request, state] : members_) unacked += state.member.trajectory.unacked();
  MutexLock lock(&mu_);
  sampling_count_ = generating_;
  member_count_ = members_.size();
  unacked_ = unacked;
  UpdatePause();
  counted_.NotifyAll();
}

// Pauses the engine while too many tokens are not acknowledged, and lets it go on afterwards. So
// memory stays bounded while the queue cannot be reached.
void Streamer::UpdatePause() {
  const bool hold = (unacked_ + new_tokens_) * options_.token_bytes() > options_.most_unacked;
  if (hold == held_back_) return;
  held_back_ = hold;
  loop_->SetPaused(hold);
  if (hold) {
    log::Warning("decoding_held_back",
                 {{"job_id", options_.job_name},
                  {"unacked_tokens", static_cast<int64_t>(unacked_ + new_tokens_)}});
  } else {
    log::Info("decoding_goes_on", {{"job_id", options_.job_name}});
  }
}

void Streamer::TakeGranted(std::vector<Member> members) {
  if (members.empty()) return;
  for (Member& member : members) {
    const uint64_t request = member.request;
    by_lease_[member.lease] = request;
    MemberState& state = members_
                             .emplace(request, MemberState{.member = std::move(member),
                                                           .granted = Clock::Real()->Monotonic()})
                             .first->second;
    state.continued = state.member.trajectory.position() > state.member.trajectory.prompt();
    generating_ += state.member.generating;
    if (state.member.put_prompt) SendPrompt(request, state);
    if (!state.member.generating) unsent_.push_back(request);
  }
  MutexLock lock(&mu_);
  SLUICE_CHECK(granted_ >= members.size());
  granted_ -= members.size();
  sampling_count_ = generating_;
  member_count_ = members_.size();
}

void Streamer::TakeStep(const StepEvents& step) {
  if (step.seconds > 0) metrics_.decode_step.Observe(step.seconds);
  metrics_.tokens_generated.Add(static_cast<double>(step.tokens.size()));
  const absl::Duration now = Clock::Real()->Monotonic();
  ++steps_;
  for (const TokenEvent& event : step.tokens) {
    const auto it = members_.find(event.request);
    if (it == members_.end()) continue;  // The member was abandoned meanwhile.
    MemberState& state = it->second;
    Trajectory& trajectory = state.member.trajectory;
    if (trajectory.finish() != FinishReason::kNone) continue;  // The queue had no room for more.

    if (std::exchange(state.last_step, steps_) != steps_) state.seconds += step.seconds;
    if (trajectory.unsent() == 0) state.oldest_unsent = now;
    trajectory.Append(event);
    if (event.finish != FinishReason::kNone) {
      trajectory.Finish(event.finish);
      EndGenerating(state);
      (event.finish == FinishReason::kStop ? metrics_.finished_stop : metrics_.finished_length)
          .Add();
      metrics_.response_tokens.Observe(static_cast<double>(trajectory.tokens().size()));
      metrics_.turn.Observe(absl::ToDoubleSeconds(now - state.granted));
    }
    if (event.finish != FinishReason::kNone || trajectory.unsent() >= options_.piece)
      unsent_.push_back(event.request);
  }

  if (has_other_workers_) {
    for (const uint64_t request : step.crowded_out) Migrate(request);
  }
  for (const RequestFailure& failure : step.failures) {
    const bool nonfinite = ReasonOf(failure.status) == "NONFINITE";
    log::Warning("request_failed", {{"job_id", options_.job_name}, {"error", failure.status}});
    Drop(failure.request, nonfinite ? "nonfinite" : "bad_row");
  }
}

void Streamer::GiveBackIfStanding(absl::Duration now) {
  if (!stands_) {
    stands_since_.reset();
    return;
  }
  if (!stands_since_.has_value()) stands_since_ = now;
  if (now - *stands_since_ < options_.stand || !has_other_workers_) return;
  for (const auto& [request, state] : members_) Migrate(request);
}

// Stops sampling the member here, because the KV cache is too small for it or the engine stands.
// Once the queue has all of its tokens, ReleaseLeaving() gives it back, so that another worker
// continues it.
void Streamer::Migrate(uint64_t request) {
  const auto it = members_.find(request);
  if (it == members_.end() || !it->second.member.generating) return;
  loop_->Abort(request, AbortReason::kDrain);
  EndGenerating(it->second);
  it->second.leaves = true;
  unsent_.push_back(request);
  leaving_.push_back(request);
}

// Gives back the leases of leaving answers whose tokens the queue has. An answer whose last token
// was sampled before the abort took effect stays, and is sealed.
absl::Status Streamer::ReleaseLeaving() {
  queue::v1::ReleaseRequest request;
  request.set_reason(queue::v1::RELEASE_REASON_MIGRATE);
  std::erase_if(leaving_, [&](uint64_t id) {
    const auto it = members_.find(id);
    if (it == members_.end() || it->second.member.trajectory.finish() != FinishReason::kNone)
      return true;
    const MemberState& state = it->second;
    if (!state.member.trajectory.all_acked() || request.leases_size() == kMaxItems) return false;
    request.add_leases(state.member.lease);
    leases_->Forget(state.member.lease);
    by_lease_.erase(state.member.lease);
    members_.erase(it);
    return true;
  });
  if (request.leases_size() == 0) return absl::OkStatus();
  metrics_.migrated.Add(request.leases_size());
  return client_->Release(std::move(request)).status();
}

void Streamer::EndGenerating(MemberState& state) {
  if (!state.member.generating) return;
  SLUICE_CHECK(generating_ > 0);
  --generating_;
  state.member.generating = false;
}

void Streamer::Abandon(uint64_t request, AbortReason reason, absl::string_view why) {
  Forget(request, reason, why, metrics_.abandoned);
}

void Streamer::Forget(uint64_t request, AbortReason reason, absl::string_view why,
                      const metrics::Counter& ended) {
  const auto it = members_.find(request);
  if (it == members_.end()) return;
  // An answer that had ended was counted then.
  if (it->second.member.trajectory.finish() == FinishReason::kNone) ended.Add();
  if (reason == AbortReason::kLeaseLost)
    metrics_.tokens_regenerated.Add(static_cast<double>(it->second.member.trajectory.unacked()));
  log::Debug("answer_abandoned", {{"job_id", options_.job_name}, {"why", why}});
  if (it->second.member.generating) loop_->Abort(request, reason);
  EndGenerating(it->second);
  leases_->Forget(it->second.member.lease);
  by_lease_.erase(it->second.member.lease);
  members_.erase(it);
}

void Streamer::Drop(uint64_t request, absl::string_view reason) {
  const auto it = members_.find(request);
  if (it == members_.end()) return;
  queue::v1::DropItem& item = drops_.emplace_back();
  *item.mutable_ref() = it->second.member.ref;
  item.set_lease(it->second.member.lease);
  item.set_reason(std::string(reason));
  Forget(request, AbortReason::kCancelled, reason, metrics_.dropped);
}

void Streamer::TakeCancelled(const queue::v1::CancelHint& hint) {
  std::vector<uint64_t> requests;
  for (const auto& [request, state] : members_) {
    const common::v1::TrajectoryRef& ref = state.member.ref;
    const bool same = ref.group() == hint.ref().group() &&
                      (!hint.ref().has_member() || hint.ref().member() == ref.member()) &&
                      (hint.ref().attempt() == 0 || hint.ref().attempt() == ref.attempt());
    if (same) requests.push_back(request);
  }
  for (uint64_t request : requests) Abandon(request, AbortReason::kCancelled, hint.reason());
}

void Streamer::TakeAck(const Ack& ack) {
  const auto it = members_.find(ack.request);
  if (it == members_.end()) return;
  MemberState& state = it->second;
  Trajectory& trajectory = state.member.trajectory;
  if (ack.status.ok()) {
    SLUICE_FAILPOINT("rollout.put.after_ack");

    if (ack.what == Ack::What::kPiece) trajectory.Acknowledge(ack.end);
    if (ack.what == Ack::What::kMessages) state.messages = MemberState::Messages::kStored;
    if (trajectory.finish() != FinishReason::kNone) finished_.push_back(ack.request);
    return;
  }
  const std::string reason = ReasonOf(ack.status);
  if (absl::IsCancelled(ack.status)) return;  // The session stops.
  if (reason == "NOT_YET" && ack.what == Ack::What::kPiece) {
    SendFrom(ack.request, state, ack.watermark);
  } else if (absl::IsResourceExhausted(ack.status) && ack.what == Ack::What::kPiece) {
    // The answer is longer than the space that the queue has reserved for it, so it ends with the
    // tokens that are stored.
    if (state.member.generating) loop_->Abort(ack.request, AbortReason::kCancelled);
    EndGenerating(state);
    if (trajectory.finish() == FinishReason::kNone) metrics_.finished_length.Add();
    trajectory.Truncate(ack.watermark);
    unsent_.push_back(ack.request);
  } else if (reason == "LEASE_LOST" || reason == "GONE") {
    Abandon(ack.request, AbortReason::kLeaseLost, reason);
  } else {
    log::Error("put_refused", {{"job_id", options_.job_name}, {"error", ack.status}});
    Drop(ack.request, "lost");
  }
}

void Streamer::SendFrom(uint64_t request, MemberState& state, uint64_t watermark) {
  Trajectory& trajectory = state.member.trajectory;
  // The queue does not have the whole prompt: the member that was to send it is gone, or the queue
  // has lost it. This member sends it now.
  if (watermark < trajectory.prompt()) {
    state.member.put_prompt = true;
    state.prompt_put = false;
  }
  trajectory.Rewind(watermark);
  unsent_.push_back(request);
}

// Sending to the queue. ---------------------------------------------------------------------------

bool Streamer::Send(uint64_t request, common::v1::Record record, std::string payload,
                    Ack::What what, uint64_t end) {
  const absl::Status put = puts_->Put(std::move(record), std::move(payload),
                                      [this, request, what, end](const PutOutcome& outcome) {
                                        MutexLock lock(&mu_);
                                        inbox_.acks.push_back({.request = request,
                                                               .what = what,
                                                               .end = end,
                                                               .status = outcome.status,
                                                               .watermark = outcome.watermark});
                                        changed_.NotifyOne();
                                      });
  if (!put.ok() && !absl::IsResourceExhausted(put) && !absl::IsCancelled(put)) {
    log::Error("put_failed", {{"job_id", options_.job_name}, {"error", put}});
  }
  return put.ok();
}

bool Streamer::SendPrompt(uint64_t request, MemberState& state) {
  const std::vector<int32_t>& tokens = state.member.prompt->tokens;

  // The prompt is the group's, so the owner has no member.
  common::v1::Record record;
  std::string payload;
  record.mutable_owner()->set_group(state.member.ref.group());
  record.set_lease(state.member.lease);
  common::v1::Piece& piece = *record.mutable_piece();
  piece.set_segment(kPromptSegment);
  piece.set_role(common::v1::SEGMENT_ROLE_PROMPT);
  piece.set_count(static_cast<uint32_t>(tokens.size()));
  AddField("tokens", common::v1::DTYPE_I32, {static_cast<int64_t>(tokens.size())},
           Bytes<int32_t>(tokens), &record, &payload);
  state.prompt_put =
      Send(request, std::move(record), std::move(payload), Ack::What::kPrompt, tokens.size());
  return state.prompt_put;
}

bool Streamer::SendPieces(uint64_t request, MemberState& state, bool all) {
  Trajectory& trajectory = state.member.trajectory;
  while (trajectory.unsent() > 0 && (all || trajectory.unsent() >= options_.piece)) {
    if (state.member.put_prompt && !state.prompt_put && !SendPrompt(request, state)) return false;

    const Trajectory::Piece taken =
        trajectory.TakePiece(std::max<size_t>(1, kMaxPiece / options_.token_bytes()));
    const int64_t count = static_cast<int64_t>(taken.tokens.size());
    common::v1::Record record;
    std::string payload;
    *record.mutable_owner() = state.member.ref;
    record.set_lease(state.member.lease);
    common::v1::Piece& piece = *record.mutable_piece();
    piece.set_at(taken.at);
    piece.set_segment(kAnswerSegment);
    piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
    piece.set_count(static_cast<uint32_t>(count));
    piece.set_trainable(true);
    const bool last = trajectory.finish() != FinishReason::kNone && trajectory.unsent() == 0;
    if (last && !state.continued && state.seconds > 0)
      *piece.mutable_duration() = rpc::ToProto(absl::Seconds(state.seconds));
    for (const VersionRun& run : taken.runs) *piece.add_runs() = rpc::ToProto(run);
    AddField("tokens", common::v1::DTYPE_I32, {count}, Bytes(taken.tokens), &record, &payload);
    AddField("logprobs", common::v1::DTYPE_F32, {count}, Bytes(taken.logprobs), &record, &payload);
    if (!taken.routing.empty()) {
      AddField("routing", common::v1::DTYPE_U16, {count, options_.layers, options_.experts},
               Bytes(taken.routing), &record, &payload);
    }

    if (!Send(request, std::move(record), std::move(payload), Ack::What::kPiece,
              taken.at + taken.tokens.size())) {
      trajectory.Rewind(taken.at);
      return false;
    }
  }

  return trajectory.finish() == FinishReason::kNone ||
         state.messages != MemberState::Messages::kNone || SendMessages(request, state);
}

bool Streamer::SendMessages(uint64_t request, MemberState& state) {
  const std::string text = PromptRenderer::WithAnswer(
      state.member.prompt->messages, renderer_->AnswerText(state.member.trajectory.tokens()));
  common::v1::Record record;
  std::string payload;
  *record.mutable_owner() = state.member.ref;
  record.set_lease(state.member.lease);
  if (text.size() <= kMaxInline) {
    AddInlineField("messages", common::v1::DTYPE_UNSPECIFIED, text, &record);
  } else {
    AddField("messages", common::v1::DTYPE_UNSPECIFIED, {static_cast<int64_t>(text.size())}, text,
             &record, &payload);
  }
  if (options_.answer_ends) {
    const Trajectory& trajectory = state.member.trajectory;
    const std::vector<uint32_t> ends = renderer_->AnswerEnds(trajectory.tokens());
    std::vector<uint32_t> rows;  // [n, 2]
    for (size_t i = 0; i < ends.size(); ++i)
      rows.insert(rows.end(), {trajectory.prompt() + static_cast<uint32_t>(i), ends[i]});
    AddField("answer_ends", common::v1::DTYPE_U32, {static_cast<int64_t>(ends.size()), 2},
             Bytes<uint32_t>(rows), &record, &payload);
  }
  if (!Send(request, std::move(record), std::move(payload), Ack::What::kMessages, 0)) return false;
  state.messages = MemberState::Messages::kSent;
  return true;
}

// Ending members. ---------------------------------------------------------------------------------

// Seals the finished answers of which the queue has acknowledged everything.
absl::Status Streamer::SealFinished() {
  queue::v1::SealRequest request;
  std::vector<uint64_t> sealing;
  for (uint64_t id : finished_) {
    const auto it = members_.find(id);
    if (it == members_.end() || request.items_size() == kMaxItems) continue;
    const MemberState& state = it->second;
    const Trajectory& trajectory = state.member.trajectory;
    const bool ready = trajectory.finish() != FinishReason::kNone && trajectory.all_acked() &&
                       state.messages == MemberState::Messages::kStored;
    if (!ready || std::find(sealing.begin(), sealing.end(), id) != sealing.end()) continue;

    queue::v1::SealItem& item = *request.add_items();
    *item.mutable_ref() = state.member.ref;
    item.set_lease(state.member.lease);
    item.set_tokens(trajectory.position());
    item.set_crc32c(trajectory.Crc32c());
    item.set_finish(ToProto(trajectory.finish()));
    item.set_turns(1);
    sealing.push_back(id);
    leases_->Forget(state.member.lease);
  }
  std::erase_if(finished_, [&](uint64_t id) {
    return !members_.contains(id) || std::find(sealing.begin(), sealing.end(), id) != sealing.end();
  });
  if (sealing.empty()) return absl::OkStatus();

  SLUICE_FAILPOINT_STATUS("rollout.seal.before");
  SLUICE_ASSIGN_OR_RETURN(const queue::v1::SealResponse response,
                          client_->Seal(std::move(request)));
  for (int i = 0; i < response.items_size() && i < static_cast<int>(sealing.size()); ++i)
    TakeSealAnswer(sealing[i], response.items(i));
  return absl::OkStatus();
}

// Takes the queue's answer to the seal of one member.
void Streamer::TakeSealAnswer(uint64_t request, const common::v1::Item& item) {
  const auto it = members_.find(request);
  if (it == members_.end()) return;
  MemberState& state = it->second;
  if (item.code() == 0 || item.reason() == "LEASE_LOST" || item.reason() == "GONE") {
    if (item.code() == 0 && options_.sealed) options_.sealed(state.member);
    by_lease_.erase(state.member.lease);
    members_.erase(it);
  } else if (item.reason() == "NOT_YET") {
    // The queue has lost tokens that it had acknowledged, so they are sent again.
    leases_->Hold(state.member.lease);
    state.messages = MemberState::Messages::kNone;
    SendFrom(request, state, item.watermark());
  } else {
    log::Error("seal_refused",
               {{"job_id", options_.job_name}, {"code", item.code()}, {"reason", item.reason()}});
    Drop(request, "lost");
  }
}

absl::Status Streamer::SendDrops(std::vector<queue::v1::DropItem> items) {
  for (size_t from = 0; from < items.size(); from += kMaxItems) {
    queue::v1::DropRequest request;
    for (size_t i = from; i < std::min(items.size(), from + kMaxItems); ++i)
      *request.add_items() = std::move(items[i]);
    SLUICE_ASSIGN_OR_RETURN(const queue::v1::DropResponse response,
                            client_->Drop(std::move(request)));
    for (const common::v1::Item& item : response.items()) {
      if (item.code() != 0 && item.reason() != "LEASE_LOST" && item.reason() != "GONE") {
        log::Warning(
            "drop_refused",
            {{"job_id", options_.job_name}, {"code", item.code()}, {"reason", item.reason()}});
      }
    }
  }
  return absl::OkStatus();
}

void Streamer::UpdateMetrics() {
  const StepLoop::Times times = loop_->times();
  const EngineStats stats = loop_->stats();
  metrics_.running.Set(stats.running);
  metrics_.waiting.Set(stats.waiting);
  metrics_.unsealed.Set(static_cast<double>(members_.size() - generating_));
  metrics_.policy_version.Set(static_cast<double>(stats.version.number));
  metrics_.resident_versions.Set(stats.versions);
  metrics_.kv_usage.Set(stats.kv_capacity == 0 ? 0
                                               : static_cast<double>(stats.kv_tokens) /
                                                     static_cast<double>(stats.kv_capacity));
  metrics_.decode_seconds.Add(absl::ToDoubleSeconds(times.decode - seen_times_.decode));
  metrics_.prefill_seconds.Add(absl::ToDoubleSeconds(times.prefill - seen_times_.prefill));
  metrics_.activate_seconds.Add(absl::ToDoubleSeconds(times.activate - seen_times_.activate));
  metrics_.idle_seconds.Add(absl::ToDoubleSeconds(times.idle - seen_times_.idle));
  metrics_.prompt_computed.Add(
      static_cast<double>(stats.prompt_tokens_computed - seen_stats_.prompt_tokens_computed));
  metrics_.prompt_cached.Add(
      static_cast<double>(stats.prompt_tokens_forked - seen_stats_.prompt_tokens_forked +
                          stats.prompt_tokens_cached - seen_stats_.prompt_tokens_cached));

  // The engine counts these over all requests, those of guests too.
  metrics_.nonfinite.Add(static_cast<double>(stats.nonfinite_rows - seen_stats_.nonfinite_rows));
  metrics_.preemptions.Add(static_cast<double>(stats.preemptions - seen_stats_.preemptions));

  uint64_t unacked = 0;
  for (const auto& [request, state] : members_) unacked += state.member.trajectory.unacked();
  metrics_.unacked_tokens.Set(static_cast<double>(unacked));
  seen_times_ = times;
  seen_stats_ = stats;
}

}  // namespace sluice::rollout
