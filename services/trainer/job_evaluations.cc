#include "services/trainer/job_evaluations.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"

namespace sluice::trainer {
absl::Status JobEvaluations::Open(int64_t version, WeightPublisher* publisher) {
  if (!enabled()) return absl::OkStatus();
  const JobConfig& config = job_->config;
  EvaluationLog evaluations(config.checkpoint_dir,
                            config.supervised() ? Better::kLower : Better::kHigher);
  if (const absl::Status loaded = evaluations.Load(version); absl::IsDataLoss(loaded)) {
    job_->RaiseEvent(common::v1::SEVERITY_WARNING, "evaluations_damaged",
                     absl::StrCat(loaded.message(), "; the evaluations so far no longer count"));
  } else if (!loaded.ok()) {
    return loaded;
  }

  Evaluator::Hooks hooks;
  hooks.on_event = [job = job_](common::v1::Severity severity, absl::string_view code,
                                absl::string_view message) {
    job->RaiseEvent(severity, code, message);
    log::Info(code, {{"job_id", job->config.name}, {"what", message}});
  };
  std::vector<std::string> datasets;
  for (const JobConfig::Source& source : config.eval_sources) datasets.push_back(source.name);
  const Evaluator::Options options{.job = config.id,
                                   .job_name = config.name,
                                   .worker = job_->worker,
                                   .incarnation = config.incarnation,
                                   .dir = config.checkpoint_dir,
                                   .datasets = std::move(datasets),
                                   .version = version};
  MutexLock lock(&mu_);
  evaluator_ = std::make_unique<Evaluator>(options, std::move(evaluations), publisher, &job_->waits,
                                           &cancel_, std::move(hooks));
  evaluator_->SetRollouts(rollouts_);
  return absl::OkStatus();
}

std::optional<int64_t> JobEvaluations::FindUnfinished(int64_t version) const {
  if (!enabled()) return std::nullopt;
  const std::optional<int64_t> number = LinkedVersion(job_->config.checkpoint_dir, kEvaluatingLink);
  return number.has_value() && *number < version ? number : std::nullopt;
}

bool JobEvaluations::CheckDue(int64_t version) {
  if (!enabled()) return false;
  const JobConfig& config = job_->config;
  if (config.IsLast(version)) return true;
  if (version % config.eval_every_steps != 0) return false;

  if (config.IsLast(version + 1)) {
    job_->RaiseEvent(common::v1::SEVERITY_INFO, "eval_skipped",
                     absl::StrCat("version ", version, " is not evaluated: the last one, ",
                                  version + 1, ", follows at once"));
    return false;
  }
  if (evaluator()->running().has_value()) {
    job_->RaiseEvent(common::v1::SEVERITY_WARNING, "eval_skipped",
                     absl::StrCat("version ", version,
                                  " is not evaluated: the previous evaluation still goes on. Raise "
                                  "eval.every_steps or eval.share, or evaluate fewer rows"));
    return false;
  }
  return true;
}

absl::Status JobEvaluations::Start(const PublishedVersion& version) {
  Await();
  SLUICE_RETURN_IF_ERROR(
      LinkCheckpoint(job_->config.checkpoint_dir, kEvaluatingLink, version.version.number));
  evaluator()->Start(version);
  started_ = version.version.number;
  return absl::OkStatus();
}

void JobEvaluations::Record(const PublishedVersion& version,
                            const std::function<absl::StatusOr<Evaluation>()>& evaluate) {
  evaluator()->Record(version, evaluate);
  started_ = version.version.number;
}

void JobEvaluations::AwaitBeforeLastStep(int64_t version) {
  const JobConfig& config = job_->config;
  const bool last_is_next = config.IsLast(version + 1) && !config.IsLast(version);
  if (!enabled() || !last_is_next) return;
  const std::optional<PolicyVersion> running = evaluator()->running();
  if (!running.has_value()) return;

  const auto waits = job_->waits.Begin(
      {.kind = "VERSION",
       .id = running->str(),
       .cause = absl::StrCat(
           job_->worker, " waits for the evaluation of a version before it trains the last step")});
  Await();
}

void JobEvaluations::Await() {
  if (enabled()) evaluator()->Await();
}

absl::Status JobEvaluations::status() const {
  return enabled() ? evaluator()->status() : absl::OkStatus();
}

std::map<std::string, double> JobEvaluations::TakeValues(int64_t k) {
  return enabled() ? evaluator()->TakeValues(k) : std::map<std::string, double>();
}

EvalTotals JobEvaluations::totals() const {
  const Evaluator* const made = evaluator();
  return made == nullptr ? EvalTotals() : made->totals();
}

void JobEvaluations::SetRollouts(std::vector<std::string> rollouts) {
  MutexLock lock(&mu_);
  rollouts_ = std::move(rollouts);
  if (evaluator_ != nullptr) evaluator_->SetRollouts(rollouts_);
}

void JobEvaluations::Abandon() {
  Cancel();
  const Evaluator* const made = evaluator();
  const std::optional<PolicyVersion> running = made == nullptr ? std::nullopt : made->running();
  if (!running.has_value()) return;
  job_->RaiseEvent(
      common::v1::SEVERITY_WARNING, "eval_abandoned",
      absl::StrCat("the trainer ends while version ", running->number,
                   " is being evaluated; a later incarnation of the job's trainer evaluates it, "
                   "and without one it gets no score"));
}

}  // namespace sluice::trainer
