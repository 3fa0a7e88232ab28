#include "services/trainer/step_reporter.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::trainer {

StepReporter::StepReporter(JobContext* job, Metrics* metrics,
                           std::function<void(const job::v1::StepReport& report)> on_step)
    : job_(job),
      metrics_(metrics),
      on_step_(std::move(on_step)),
      history_(job->config.checkpoint_dir, job->config.incarnation, [job](const std::string& text) {
        log::Warning("history", {{"job_id", job->config.name}, {"cause", text}});
        job->RaiseEvent(common::v1::SEVERITY_WARNING, "history", text);
      }) {}

void StepReporter::BeginHistory(int64_t next) { history_.Begin(next); }

void StepReporter::Report(const StepResult& result, const PhaseSeconds& seconds,
                          PolicyVersion version, const std::map<std::string, double>& evaluated) {
  metrics_->RecordStep(result, seconds, version.number);
  metrics_->RecordEvaluation(evaluated);
  std::map<std::string, double> values = ValuesOf(result, seconds);
  values.insert(evaluated.begin(), evaluated.end());
  RaiseSkipEvent(result);
  RaiseLeftOutEvents(result);

  const absl::Time now = job_->clock->Now();
  history_.Append({.step = result.k,
                   .version = version,
                   .at = now,
                   .values = values,
                   .staleness = result.staleness});
  if (!on_step_) return;

  job::v1::StepReport report;
  report.set_job(job_->config.id);
  report.set_k(result.k);
  *report.mutable_version() = rpc::ToProto(version);
  *report.mutable_at() = rpc::ToProto(now);
  report.mutable_values()->insert(values.begin(), values.end());
  for (const auto& [staleness, tokens] : result.staleness)
    (*report.mutable_staleness())[absl::StrCat(staleness)] = tokens;
  on_step_(report);
}

std::map<std::string, double> StepReporter::ValuesOf(const StepResult& result,
                                                     const PhaseSeconds& seconds) {
  std::map<std::string, double> values = {result.metrics.begin(), result.metrics.end()};
  values["reward_count"] = static_cast<double>(result.reward_count);
  if (result.reward_count > 0) values["reward_mean"] = result.reward_mean;
  values["tokens"] = static_cast<double>(result.tokens);
  values["sequences"] = static_cast<double>(result.sequences);
  if (!result.critic_alone) {
    values["loss"] = result.loss;
    values["grad_norm"] = result.grad_norm;
    values["lr"] = result.lr;
  }
  values["skipped"] = result.skipped.empty() ? 0 : 1;

  values["seconds_wait_data"] = seconds.wait_data;
  values["seconds_forward_backward"] = seconds.forward_backward;
  values["seconds_optim"] = seconds.optim;
  values["seconds_apply"] = seconds.apply;
  values["seconds_publish"] = seconds.publish;
  values["seconds_checkpoint"] = seconds.checkpoint;
  const absl::Duration now = job_->clock->Monotonic();
  values["seconds_step"] = absl::ToDoubleSeconds(now - std::exchange(step_started_, now));
  return values;
}

void StepReporter::RaiseSkipEvent(const StepResult& result) {
  if (result.skipped.empty()) return;
  log::Warning("step_skipped",
               {{"job_id", job_->config.name}, {"k", result.k}, {"reason", result.skipped}});
  job_->RaiseEvent(common::v1::SEVERITY_WARNING, "step_skipped",
                   absl::StrCat("step ", result.k, " was skipped (", result.skipped,
                                "): ", SkipText(result.skipped)));
}

void StepReporter::RaiseLeftOutEvents(const StepResult& result) {
  // A broken verifier or file spoils every step, so an event is raised only for the 1st, 2nd, 4th,
  // 8th, .. such step.
  const auto raise = [&](const char* name, int64_t* steps, absl::string_view what) {
    const auto count = result.metrics.find(name);
    if (count == result.metrics.end() || count->second == 0) return;
    if (!std::has_single_bit(static_cast<uint64_t>(++*steps))) return;
    job_->RaiseEvent(common::v1::SEVERITY_WARNING, name,
                     absl::StrCat("step ", result.k, ": ", count->second, what));
  };
  raise("bad_rewards", &bad_reward_steps_,
        " answers have a reward that is not finite; these answers have no advantage");
  raise("rows_left_out", &left_out_steps_,
        " rows were not trained on: an answer is too long for model.max_context, or cannot be read "
        "(data.order.on_bad_row: skip)");
}

}  // namespace sluice::trainer
