#include "services/rollout/grants.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/queue_client.h"
#include "services/rollout/convert.h"
#include "services/rollout/prefix.h"

namespace sluice::rollout {
namespace {

common::v1::TrajectoryRef RefOf(const queue::v1::Grant& grant, const queue::v1::Member& member) {
  common::v1::TrajectoryRef ref;
  ref.set_group(grant.group());
  ref.set_member(member.member());
  ref.set_attempt(member.attempt());
  return ref;
}

bool Contains(const std::vector<int32_t>& ids, int32_t token) {
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

}  // namespace

Grants::Grants(Options options, QueueClient* queue, LeaseKeeper* leases,
               const PromptRenderer* renderer, const MadeEngine* engine, const StepLoop* loop,
               daemon::Waits* waits, const Metrics& metrics)
    : options_(std::move(options)),
      queue_(queue),
      leases_(leases),
      renderer_(renderer),
      engine_(engine),
      loop_(loop),
      waits_(waits),
      metrics_(metrics) {}

absl::Status Grants::ConvertGrant(const queue::v1::Grant& grant, GrantedWork* work) {
  if (grant.members_size() == 0) return absl::OkStatus();
  SamplingParams sampling = FromProto(grant.sampling());
  SLUICE_RETURN_IF_ERROR(CheckSampling(sampling, /*trainable=*/true));

  // All members of the grant share one prompt. Without a usable one the whole group is dropped.
  absl::StatusOr<RenderedPrompt> rendered =
      renderer_->Render(grant.row().source(), grant.row().json());
  if (!rendered.ok()) {
    DropGroup(grant, "bad_row", std::string(rendered.status().message()), work);
    return absl::OkStatus();
  }
  const auto prompt = std::make_shared<const RenderedPrompt>(*std::move(rendered));
  const auto prompt_tokens = static_cast<uint32_t>(prompt->tokens.size());
  const uint32_t context = engine_->engine->max_context();
  if (const uint32_t limit = std::min(options_.max_prompt, context - 1); prompt_tokens > limit) {
    DropGroup(grant, "prompt_too_long",
              absl::StrCat(prompt_tokens, " tokens; the limit is ", limit), work);
    return absl::OkStatus();
  }
  sampling.max_tokens = std::min(sampling.max_tokens, context - prompt_tokens);

  const uint64_t engine_group = next_id_++;
  // Of the members that start without a prefix, the first one sends the group's prompt to the
  // queue.
  bool prompt_is_put = false;
  for (const queue::v1::Member& granted : grant.members()) {
    absl::StatusOr<Member> member = MakeMember(grant, granted, prompt);
    if (!member.ok()) {
      const std::string reason = ReasonOf(member.status());
      if (reason != "LEASE_LOST" && reason != "GONE") return member.status();
      leases_->Forget(granted.lease().id());
      continue;
    }
    member->put_prompt = !prompt_is_put && granted.prefix() == 0;
    prompt_is_put = prompt_is_put || granted.prefix() == 0;

    member->trajectory.Finish(FinishOf(member->trajectory.tokens(), sampling));
    member->generating = member->trajectory.finish() == FinishReason::kNone;
    if (member->generating)
      work->requests.push_back(MakeRequest(grant, *member, sampling, engine_group));
    work->members.push_back(*std::move(member));
  }
  return absl::OkStatus();
}

void Grants::DropGroup(const queue::v1::Grant& grant, const char* reason, const std::string& why,
                       GrantedWork* work) {
  log::Warning("prompt_dropped", {{"job_id", options_.job_name},
                                  {"reason", reason},
                                  {"row", grant.row().index()},
                                  {"why", why}});
  for (const queue::v1::Member& member : grant.members()) leases_->Forget(member.lease().id());
  queue::v1::DropItem item;
  item.mutable_ref()->set_group(grant.group());
  item.set_lease(grant.members(0).lease().id());
  item.set_reason(reason);
  work->drops.push_back(std::move(item));
  metrics_.dropped.Add(grant.members_size());
}

absl::StatusOr<Member> Grants::MakeMember(const queue::v1::Grant& grant,
                                          const queue::v1::Member& granted,
                                          std::shared_ptr<const RenderedPrompt> prompt) {
  const auto prompt_tokens = static_cast<uint32_t>(prompt->tokens.size());
  const common::v1::TrajectoryRef ref = RefOf(grant, granted);
  SLUICE_ASSIGN_OR_RETURN(Trajectory trajectory, ResumeTrajectory(granted, ref, prompt_tokens));
  if (engine_->engine->caps().routing) {
    const ModelConfig& model = engine_->model.config;
    trajectory.RecordRouting(static_cast<uint32_t>(model.num_layers * model.experts_per_token));
  }
  return Member{.request = next_id_++,
                .ref = ref,
                .lease = granted.lease().id(),
                .prompt = std::move(prompt),
                .granted_under = loop_->stats().version,
                .temperature = static_cast<float>(grant.sampling().temperature()),
                .trajectory = std::move(trajectory)};
}

// Returns an empty answer, or what the queue has of it from an earlier attempt.
absl::StatusOr<Trajectory> Grants::ResumeTrajectory(const queue::v1::Member& granted,
                                                    const common::v1::TrajectoryRef& ref,
                                                    uint32_t prompt_tokens) {
  if (granted.prefix() <= prompt_tokens) return Trajectory(prompt_tokens);

  const uint64_t count = granted.prefix() - prompt_tokens;
  const auto reads = waits_->Begin({.kind = "DAEMON",
                                    .id = "queue",
                                    .at = "queue",
                                    .cause = absl::StrCat(options_.worker, " reads a prefix of ",
                                                          count, " tokens from the queue")});
  SLUICE_ASSIGN_OR_RETURN(Trajectory trajectory, ReadPrefix(queue_, ref, granted.lease().id(),
                                                            prompt_tokens, granted.prefix()));
  metrics_.resumed.Add();
  metrics_.tokens_resumed.Add(static_cast<double>(count));
  return trajectory;
}

// Returns why the answer has ended, or kNone if it has not. A resumed answer may be complete: the
// worker that sampled its last token may have died before it could seal the answer.
FinishReason Grants::FinishOf(const std::vector<int32_t>& answer,
                              const SamplingParams& sampling) const {
  const auto stops = [&](int32_t token) {
    return Contains(sampling.stop_ids, token) ||
           (!sampling.ignore_eos && Contains(engine_->model.stop_ids, token));
  };
  if (!answer.empty() && stops(answer.back())) return FinishReason::kStop;
  if (answer.size() >= sampling.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

Request Grants::MakeRequest(const queue::v1::Grant& grant, const Member& member,
                            const SamplingParams& sampling, uint64_t engine_group) const {
  const std::vector<int32_t>& answer = member.trajectory.tokens();
  return Request{
      .id = member.request,
      .group = engine_group,
      // Points to the tokens, and shares the ownership of the whole rendered prompt.
      .prompt = std::shared_ptr<const std::vector<int32_t>>(member.prompt, &member.prompt->tokens),
      .sampled = answer,
      .sampled_under =
          answer.empty() ? std::nullopt : std::optional(member.trajectory.versions().back()),
      .seed = grant.seed(),
      .member = member.ref.member(),
      .sampling = sampling,
      .order = answer.empty() ? RequestClass::kTrain : RequestClass::kResumed,
      .target_step = grant.step(),
      .routing = engine_->engine->caps().routing};
}

}  // namespace sluice::rollout
