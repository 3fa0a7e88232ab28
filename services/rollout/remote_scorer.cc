#include "services/rollout/remote_scorer.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/client.h"
#include "sluice/reward/v1/reward.pb.h"

namespace sluice::rollout {
namespace {

// Of one call: the scores of a row, and the wait in the daemon's line before. A daemon that
// vanishes is noticed much sooner, by the pings of its connection.
constexpr absl::Duration kDeadline = absl::Minutes(30);
constexpr absl::Duration kRestWithoutDaemon = absl::Seconds(1);

RowScores AllWith(const absl::Status& status, size_t answers) {
  return {.generation = 0, .verdicts = std::vector<absl::StatusOr<EvalVerdict>>(answers, status)};
}

absl::StatusOr<EvalVerdict> VerdictOfReply(const reward::v1::Score& score) {
  if (score.status() == "ok") return EvalVerdict{.score = score.reward(), .passes = score.passes()};
  if (score.status() != "fault")
    return absl::InvalidArgumentError(absl::StrCat(score.status(), ": ", score.why()));
  return score.busy() ? absl::ResourceExhaustedError(score.why())
                      : absl::UnavailableError(score.why());
}

}  // namespace

absl::StatusOr<reward::v1::ScoreResponse> RemoteScorer::CallReward(
    const std::string& address, const reward::v1::ScoreRequest& request, rpc::Cancel* cancel) {
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel, channels_.Find(address));
  reward::v1::ScoreResponse response;
  SLUICE_RETURN_IF_ERROR(
      rpc::Call(*channel, request, &response, {.deadline = kDeadline, .cancel = cancel}));
  if (response.scores_size() == request.answers_size()) return response;
  return absl::InternalError(absl::StrCat(address, " gave ", response.scores_size(), " scores for ",
                                          request.answers_size(), " answers"));
}

void RemoteScorer::SetRewards(std::vector<std::string> rewards) {
  std::erase(rewards, "");
  MutexLock lock(&mu_);
  rewards_ = std::move(rewards);
}

std::optional<std::string> RemoteScorer::NextReward() {
  MutexLock lock(&mu_);
  if (rewards_.empty()) return std::nullopt;
  return rewards_[next_++ % rewards_.size()];
}

RowScores RemoteScorer::Score(const std::string& dataset, absl::Span<const EvalText> answers,
                              const std::string& row_json, rpc::Cancel* cancel) {
  reward::v1::ScoreRequest request;
  request.mutable_call()->mutable_job()->set_job(options_.job);
  request.mutable_call()->mutable_job()->set_worker(options_.worker);
  request.mutable_call()->mutable_job()->set_incarnation(options_.incarnation);
  request.set_source(dataset);
  request.set_row(row_json);
  for (const EvalText& answer : answers) {
    reward::v1::Answer& sent = *request.add_answers();
    sent.set_text(answer.text);
    sent.set_truncated(answer.truncated);
  }

  std::string trouble = "no reward daemon works for the job";
  while (!cancel->triggered()) {
    const std::optional<std::string> reward = NextReward();
    if (reward.has_value()) {
      const auto waits =
          waits_->Begin({.kind = "CALL",
                         .id = "score",
                         .at = "reward",
                         .cause = absl::StrCat("an evaluation on ", dataset, " waits for ", *reward,
                                               " to score the answers to a row"),
                         .next = "training goes on meanwhile"});
      const auto scored = CallReward(*reward, request, cancel);
      if (scored.ok()) {
        RowScores scores{.generation = scored->generation(), .verdicts = {}};
        for (const reward::v1::Score& score : scored->scores())
          scores.verdicts.push_back(VerdictOfReply(score));
        return scores;
      }
      // A daemon that ends or cannot be reached says nothing about the answers: ask another, or the
      // same one once it is back.
      const bool gone = absl::IsUnavailable(scored.status()) || absl::IsCancelled(scored.status());
      if (!gone) return AllWith(scored.status(), answers.size());
      trouble = std::string(scored.status().message());
    }

    const auto waits = waits_->Begin(
        {.kind = "DAEMON",
         .id = "reward",
         .at = "reward",
         .cause =
             absl::StrCat("an evaluation on ", dataset, " waits for a reward daemon: ", trouble),
         .next = "another one is asked, or the same one again; training goes on meanwhile"});
    if (cancel->WaitFor(kRestWithoutDaemon)) break;
  }
  return AllWith(absl::CancelledError("the evaluation ends"), answers.size());
}

}  // namespace sluice::rollout
