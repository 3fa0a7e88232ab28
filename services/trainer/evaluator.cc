#include "services/trainer/evaluator.h"

#include <pthread.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/daemon/waits.h"
#include "common/log/log.h"
#include "common/rpc/backoff.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "sluice/engine/v1/engine.pb.h"

namespace sluice::trainer {
namespace {

// Whether the same call would fail in the same way if it were made again, to this or another
// rollout.
bool IsPermanent(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss: return true;
    default: return false;
  }
}

// "heldout 0.8125 [0.7712, 0.8491] (pass@1 0.5300, 200 rows, 1.5% truncated), sums ..", with the
// interval of 95 %, or of kinds sft and dpo "heldout loss 1.2345 (200 rows), ..".
std::string Describe(const Evaluation& evaluation, const std::vector<std::string>& datasets) {
  std::vector<std::string> parts;
  for (const std::string& name : datasets) {
    const auto key = [&](absl::string_view stat) { return absl::StrCat("eval/", name, "/", stat); };
    const auto value = [&](absl::string_view stat) {
      const auto at = evaluation.values.find(key(stat));
      return at == evaluation.values.end() ? 0.0 : at->second;
    };
    if (evaluation.values.contains(key("loss"))) {
      parts.push_back(absl::StrFormat("%s loss %.4f (%d rows)", name, value("loss"),
                                      static_cast<int64_t>(value("rows"))));
      continue;
    }
    const std::string interval =
        evaluation.values.contains(key("reward_low"))
            ? absl::StrFormat(" [%.4f, %.4f]", value("reward_low"), value("reward_high"))
            : "";
    parts.push_back(absl::StrFormat("%s %.4f%s (pass@1 %.4f, %d rows, %.1f%% truncated)", name,
                                    value("reward"), interval, value("pass@1"),
                                    static_cast<int64_t>(value("rows")), 100 * value("truncated")));
  }
  return absl::StrJoin(parts, ", ");
}

void AddValues(const std::string& name, const engine::v1::EvaluationResult& result,
               std::map<std::string, double>* values) {
  const std::string prefix = absl::StrCat("eval/", name, "/");
  const double answers = static_cast<double>(result.answers() + result.unscorable());
  (*values)[prefix + "reward"] = result.reward();
  for (const auto& [k, pass] : result.pass()) (*values)[absl::StrCat(prefix, "pass@", k)] = pass;
  const auto add = [&](const std::string& name, const engine::v1::Interval& interval) {
    (*values)[absl::StrCat(name, "_low")] = interval.low();
    (*values)[absl::StrCat(name, "_high")] = interval.high();
  };
  if (result.has_reward_interval()) add(prefix + "reward", result.reward_interval());
  for (const auto& [k, interval] : result.pass_interval())
    add(absl::StrCat(prefix, "pass@", k), interval);
  if (result.generations_size() == 1)
    (*values)[prefix + "generation"] = static_cast<double>(result.generations(0));
  (*values)[prefix + "rows"] = static_cast<double>(result.rows());
  (*values)[prefix + "too_long"] = static_cast<double>(result.too_long());
  (*values)[prefix + "truncated"] = static_cast<double>(result.truncated()) / answers;
  (*values)[prefix + "unscorable"] = static_cast<double>(result.unscorable()) / answers;
  (*values)[prefix + "tokens"] = static_cast<double>(result.tokens());
  (*values)[prefix + "seconds"] = result.seconds();
}

}  // namespace

struct Evaluator::Thread {
  std::thread thread;
};

Evaluator::Evaluator(Options options, EvaluationLog log, WeightPublisher* publisher,
                     daemon::Waits* waits, rpc::Cancel* cancel, Hooks hooks)
    : options_(std::move(options)),
      publisher_(publisher),
      waits_(waits),
      cancel_(cancel),
      hooks_(std::move(hooks)),
      log_(std::move(log)),
      thread_(new Thread) {
  {
    // If the run goes back to a point before the step whose report carried the last evaluation, the
    // next report carries it again.
    MutexLock lock(&mu_);
    const Evaluation* const last = log_.Last();
    if (last != nullptr && last->reported >= options_.version) unreported_ = last->version.number;
  }
  cancel_hook_ = cancel_->AddCallback([this] {
    MutexLock lock(&mu_);
    cancelled_ = true;
    changed_.NotifyAll();
  });
  thread_->thread = std::thread([this] { Run(); });
  pthread_setname_np(thread_->thread.native_handle(), "sluice-evaluate");
}

Evaluator::~Evaluator() {
  thread_->thread.join();
  cancel_->RemoveCallback(cancel_hook_);
}

void Evaluator::SetRollouts(std::vector<std::string> rollouts) {
  std::erase(rollouts, "");
  MutexLock lock(&mu_);
  rollouts_ = std::move(rollouts);
  if (end_call_ &&
      std::find(rollouts_.begin(), rollouts_.end(), asked_rollout_) == rollouts_.end()) {
    asked_rollout_.clear();
    end_call_();
  }
  changed_.NotifyAll();
}

void Evaluator::Start(const PublishedVersion& version) {
  MutexLock lock(&mu_);
  while (running_.has_value() && !cancelled_) changed_.Wait(&mu_);
  if (cancelled_) return;
  publisher_->Lease(kHolder, {version.manifest}, absl::InfiniteDuration());
  running_ = version;
  changed_.NotifyAll();
}

void Evaluator::Await() {
  MutexLock lock(&mu_);
  while (running_.has_value() && !cancelled_) changed_.Wait(&mu_);
}

std::optional<PolicyVersion> Evaluator::running() const {
  MutexLock lock(&mu_);
  return running_.has_value() ? std::optional(running_->version) : std::nullopt;
}

std::map<std::string, double> Evaluator::TakeValues(int64_t k) {
  MutexLock lock(&mu_);
  const Evaluation* const evaluation = unreported_.has_value() ? log_.Find(*unreported_) : nullptr;
  if (evaluation == nullptr) return {};
  std::map<std::string, double> values = evaluation->values;
  const absl::Status written = log_.SetReported(*std::exchange(unreported_, std::nullopt), k);
  if (!written.ok())
    log::Warning("evaluations_not_written", {{"job_id", options_.job_name}, {"error", written}});
  return values;
}

EvalTotals Evaluator::totals() const {
  MutexLock lock(&mu_);
  return log_.totals();
}

absl::Status Evaluator::status() const {
  MutexLock lock(&mu_);
  return failure_;
}

void Evaluator::Run() {
  while (true) {
    PublishedVersion version;
    {
      MutexLock lock(&mu_);
      while (!running_.has_value() && !cancelled_) changed_.Wait(&mu_);
      if (cancelled_) return;
      version = *running_;
    }
    Record(version, [&] { return AskForEvaluation(version); });
    if (cancel_->triggered()) return;
  }
}

void Evaluator::Record(const PublishedVersion& version,
                       const std::function<absl::StatusOr<Evaluation>()>& evaluate) {
  if (const std::optional<Evaluation> known = FindKnown(version); known.has_value())
    return FinishEvaluation(version, *known, /*known=*/true);

  absl::StatusOr<Evaluation> evaluation = evaluate();
  if (cancel_->triggered()) return;
  if (evaluation.ok()) {
    evaluation->version = version.version;
    evaluation->state = version.state.hex();
    evaluation->values["eval/version"] = static_cast<double>(version.version.number);
    evaluation->values["eval/score"] = evaluation->score;
  }
  FinishEvaluation(version, std::move(evaluation), /*known=*/false);
}

std::optional<Evaluation> Evaluator::FindKnown(const PublishedVersion& version) {
  MutexLock lock(&mu_);
  const Evaluation* const before = log_.Find(version.version.number);
  if (before == nullptr || before->state != version.state.hex()) return std::nullopt;
  return *before;
}

absl::StatusOr<Evaluation> Evaluator::AskForEvaluation(const PublishedVersion& version) {
  Evaluation evaluation;
  const std::string number = absl::StrCat(version.version.number);
  const auto waits =
      waits_->Begin({.kind = "VERSION",
                     .id = version.version.str(),
                     .cause = absl::StrCat(options_.worker, " has version ", number, " evaluated"),
                     .next = "training goes on meanwhile"});

  for (const std::string& dataset : options_.datasets) {
    SLUICE_ASSIGN_OR_RETURN(const engine::v1::EvaluationResult result,
                            EvaluateDataset(version, dataset));
    AddValues(dataset, result, &evaluation.values);
    evaluation.score += result.reward() / static_cast<double>(options_.datasets.size());
    if (result.generations_size() > 1) {
      hooks_.on_event(
          common::v1::SEVERITY_WARNING, "eval_mixed_rewards",
          absl::StrCat("evaluation of version ", number, " on ", dataset, ": ",
                       result.generations_size(),
                       " generations of the rewards scored it, because they were changed "
                       "meanwhile or differ between reward daemons; compare its score with care"));
    }
    if (result.unscorable() == 0) continue;
    hooks_.on_event(
        common::v1::SEVERITY_WARNING, "eval_unscorable",
        absl::StrCat("evaluation of version ", number, " on ", dataset, ": ", result.unscorable(),
                     " of ", result.unscorable() + result.answers(),
                     " answers could not be scored and are left out; the first: ",
                     result.first_unscorable()));
  }
  return evaluation;
}

// Waits for a rollout and returns the next one in turn. Nullopt if cancelled.
std::optional<std::string> Evaluator::NextRollout() {
  MutexLock lock(&mu_);
  while (rollouts_.empty() && !cancelled_) changed_.Wait(&mu_);
  if (cancelled_) return std::nullopt;
  return rollouts_[next_rollout_++ % rollouts_.size()];
}

absl::StatusOr<engine::v1::EvaluationResult> Evaluator::EvaluateDataset(
    const PublishedVersion& version, const std::string& dataset) {
  rpc::Backoff backoff({});
  bool told = false;
  while (true) {
    const std::optional<std::string> rollout = NextRollout();
    if (!rollout.has_value()) return absl::CancelledError("the evaluation was cancelled");
    absl::StatusOr<engine::v1::EvaluationResult> result = AskRollout(*rollout, version, dataset);
    if (result.ok() || IsPermanent(result.status()) || cancel_->triggered()) return result;

    // Two refusals are expected and are only logged. BUSY: the rollout is still ending the
    // evaluation of an earlier call. NOT_LISTED: it has not been told of this trainer yet.
    const std::string what = absl::StrCat("evaluation of version ", version.version.number, " on ",
                                          dataset, " is begun again: ", result.status().message());
    log::Info("eval_again", {{"job_id", options_.job_name}, {"rollout", *rollout}, {"what", what}});
    if (ReasonOf(result.status()) != "BUSY" && ReasonOf(result.status()) != "NOT_LISTED" &&
        !std::exchange(told, true)) {
      hooks_.on_event(common::v1::SEVERITY_WARNING, "eval_again", what);
    }
    if (cancel_->WaitFor(backoff.Next(DetailOf(result.status()).retry_after)))
      return result.status();
  }
}

absl::StatusOr<engine::v1::EvaluationResult> Evaluator::AskRollout(const std::string& rollout,
                                                                   const PublishedVersion& version,
                                                                   const std::string& dataset) {
  engine::v1::EvaluateRequest request;
  request.mutable_call()->mutable_job()->set_job(options_.job);
  request.mutable_call()->mutable_job()->set_worker(options_.worker);
  request.mutable_call()->mutable_job()->set_incarnation(options_.incarnation);
  *request.mutable_version() = rpc::ToProto(version.version);
  request.set_manifest(version.manifest);
  request.set_state(version.state.bytes());
  request.set_dataset(dataset);

  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel,
                          rpc::Connect(rollout, {rpc::Role::kRollout}));
  rpc::ClientStream stream(*channel, *engine::v1::EvaluateRequest::descriptor(), cancel_);
  bool left = false;
  {
    MutexLock lock(&mu_);
    // If the rollout left before this moment, SetRollouts() could not end the call.
    left = std::find(rollouts_.begin(), rollouts_.end(), rollout) == rollouts_.end();
    if (!left) {
      asked_rollout_ = rollout;
      end_call_ = [&stream] { stream.TryCancel(); };
    }
  }

  if (left) stream.TryCancel();
  if (stream.Write(request)) stream.WritesDone();
  SLUICE_FAILPOINT("trainer.evaluation.asked");
  std::optional<engine::v1::EvaluationResult> result;
  for (engine::v1::EvaluateResponse response; stream.Read(&response);) {
    if (response.has_result()) result = std::move(*response.mutable_result());
  }

  {
    MutexLock lock(&mu_);
    left = asked_rollout_.empty();
    asked_rollout_.clear();
    end_call_ = nullptr;
  }
  const absl::Status status = stream.Finish();
  if (left)
    return absl::UnavailableError(absl::StrCat("the rollout at ", rollout, " has left the job"));
  SLUICE_RETURN_IF_ERROR(status);
  if (result.has_value()) return *std::move(result);
  return absl::InternalError(
      absl::StrCat("the rollout at ", rollout, " ended the call without a result"));
}

void Evaluator::FinishEvaluation(const PublishedVersion& version,
                                 absl::StatusOr<Evaluation> evaluation, bool known) {
  const int64_t number = version.version.number;
  std::string message;
  {
    MutexLock lock(&mu_);
    if (evaluation.ok()) {
      const int64_t best_before =
          log_.totals().best_checkpoint.empty() ? -1 : log_.totals().best_version;
      message = absl::StrCat("version ", number, ": ", Describe(*evaluation, options_.datasets));
      if (absl::Status added = log_.Add(*std::move(evaluation)); !added.ok()) {
        evaluation = std::move(added);
      } else {
        unreported_ = number;
        const bool best =
            !log_.totals().best_checkpoint.empty() && log_.totals().best_version == number;
        if (best && number != best_before) absl::StrAppend(&message, "; the best so far");
        if (known)
          absl::StrAppend(&message,
                          "; these weights were already evaluated before the run went back to a "
                          "checkpoint");
      }
    }
    if (!evaluation.ok()) {
      message = absl::StrCat("version ", number,
                             " could not be evaluated: ", evaluation.status().message());
      if (log_.totals().versions == 0) {
        failure_ = Annotate(evaluation.status(),
                            absl::StrCat("the first evaluation, of version ", number, ", failed"));
      }
    }

    SLUICE_FAILPOINT("trainer.evaluation.stored");
    if (absl::Status status = RemoveLink(options_.dir, kEvaluatingLink); !status.ok()) {
      log::Warning("link_not_removed", {{"job_id", options_.job_name}, {"error", status}});
    }
  }
  if (evaluation.ok()) hooks_.on_event(common::v1::SEVERITY_INFO, "evaluation", message);
  else hooks_.on_event(common::v1::SEVERITY_ERROR, "eval_failed", message);

  publisher_->Lease(kHolder, {}, absl::ZeroDuration());
  MutexLock lock(&mu_);
  running_.reset();
  changed_.NotifyAll();
}

}  // namespace sluice::trainer
