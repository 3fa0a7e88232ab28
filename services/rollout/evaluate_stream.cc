#include "services/rollout/evaluate_stream.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "services/rollout/session.h"

namespace sluice::rollout {
namespace {

engine::v1::EvaluateResponse ToProto(const EvalResult& result) {
  engine::v1::EvaluateResponse response;
  engine::v1::EvaluationResult& out = *response.mutable_result();
  out.set_rows(result.rows);
  out.set_too_long(result.too_long);
  out.set_answers(result.answers);
  out.set_unscorable(result.unscorable);
  out.set_truncated(result.truncated);
  out.set_tokens(result.tokens);
  out.set_reward(result.score_mean);
  out.mutable_pass()->insert(result.pass.begin(), result.pass.end());
  const auto set = [](const Interval& interval, engine::v1::Interval* to) {
    to->set_low(interval.low);
    to->set_high(interval.high);
  };
  if (result.score_interval.has_value()) set(*result.score_interval, out.mutable_reward_interval());
  for (const auto& [k, interval] : result.pass_interval)
    set(interval, &(*out.mutable_pass_interval())[k]);
  out.mutable_generations()->Add(result.generations.begin(), result.generations.end());
  out.set_seconds(result.seconds);
  out.set_first_unscorable(result.first_unscorable);
  return response;
}

}  // namespace

absl::Status EvaluateStream::Start(const std::shared_ptr<Session>& session,
                                   const engine::v1::EvaluateRequest& request) {
  if (request.manifest().size() != 32) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest has ", request.manifest().size(), " bytes, not 32"));
  }
  PublishedVersion version{.version = rpc::FromProto(request.version()),
                           .manifest = request.manifest()};
  SLUICE_ASSIGN_OR_RETURN(version.state, Fingerprint::FromBytes(request.state()));

  session_ = session;
  const auto done = [self = shared_from_this()](const absl::StatusOr<EvalResult>& result) {
    self->OnFinished(result);
  };
  SLUICE_ASSIGN_OR_RETURN(task_, session->Evaluate(version, request.dataset(), done));
  return absl::OkStatus();
}

void EvaluateStream::SendKeepalive() {
  if (pending() == 0) Send({});
}

void EvaluateStream::OnFinished(const absl::StatusOr<EvalResult>& result) {
  finished_ = true;
  if (result.ok()) Send(ToProto(*result));
  End(result.status());
}

void EvaluateStream::OnClosed() {
  if (finished_) return;
  if (const std::shared_ptr<Session> session = session_.lock()) session->CancelEvaluation(task_);
}

}  // namespace sluice::rollout
