#include "services/trainer/metrics.h"

#include <vector>

#include "absl/strings/str_split.h"

namespace sluice::trainer {

Metrics::Metrics(metrics::Registry* registry, const std::string& job_name, double peak_flops)
    : registry_(registry),
      labels_({{"job_id", job_name}}),
      series_(registry->Hold("job_id", job_name)),
      peak_flops_(peak_flops) {
  const auto with = [&](const char* key, const char* value) {
    metrics::Labels labels = labels_;
    labels[key] = value;
    return labels;
  };
  const auto phase = [&](const char* name) {
    return registry->AddCounter("sluice_trainer_phase_seconds_total",
                                "Time of the trainer in seconds, by phase.", with("phase", name));
  };
  steps_ = registry->AddCounter("sluice_trainer_steps_total",
                                "Applied steps, including skipped ones.", labels_);
  tokens_ = registry->AddCounter("sluice_trainer_tokens_total", "Tokens trained on.", labels_);
  wait_data_ = phase("wait_data");
  forward_backward_ = phase("forward_backward");
  optim_ = phase("optim");
  apply_ = phase("apply");
  publish_ = phase("publish");
  checkpoint_ = phase("checkpoint");
  checkpoint_seconds_ =
      registry->AddHistogram("sluice_trainer_checkpoint_duration_seconds",
                             "Time from the start of a checkpoint until the queue knows of it.",
                             metrics::LongSeconds(), labels_);
  // From the start, because an alert needs the zero before the first one.
  const auto nonfinite = [&](const char* what) {
    return registry->AddCounter("sluice_trainer_nonfinite_total",
                                "Steps skipped because a number was not finite, by kind of number.",
                                with("what", what));
  };
  nonfinite_logprob_ = nonfinite("logprob");
  nonfinite_gradient_ = nonfinite("gradient");
  nonfinite_value_ = nonfinite("value");
  const auto update = [&](const char* name) {
    return registry->AddHistogram("sluice_weights_update_duration_seconds",
                                  "Time of a weight update, by phase.", metrics::LongSeconds(),
                                  with("phase", name));
  };
  publishing_ = {.encode = update("encode"),
                 .trial = update("trial"),
                 .commit = update("commit"),
                 .bytes = registry->AddCounter("sluice_weights_bytes_total",
                                               "Bytes of weights, by what was done with them.",
                                               with("kind", "published")),
                 .withdrawn = registry->AddCounter(
                     "sluice_weights_withdrawn_total",
                     "Versions that were withdrawn after their trial at a canary.", labels_)};
  version_ =
      registry->AddGauge("sluice_trainer_policy_version",
                         "Number of steps that the weights contain.", with("policy", "policy"));
  reward_mean_ = registry->AddGauge("sluice_trainer_reward_mean",
                                    "Mean unshaped task reward of the last step.", labels_);
  reward_std_ = registry->AddGauge(
      "sluice_trainer_reward_std",
      "Standard deviation of the unshaped task rewards of the last step.", labels_);
  flat_groups_ = registry->AddGauge(
      "sluice_trainer_flat_groups_ratio",
      "Share of the last step's groups whose rewards do not differ; at 1 they teach nothing.",
      labels_);
  grad_norm_ = registry->AddGauge("sluice_trainer_grad_norm",
                                  "Norm of the last step's gradient, before clipping.", labels_);
  entropy_ = registry->AddGauge("sluice_trainer_entropy_nats",
                                "Mean entropy of the last step's tokens.", labels_);
  const auto kl = [&](const char* kind) {
    return registry->AddGauge("sluice_trainer_kl_nats", "KL of the last step, by kind.",
                              with("kind", kind));
  };
  kl_ref_ = kl("reference");
  kl_teacher_ = kl("teacher");
  kl_behav_theta_ = kl("behav_theta");
  const auto gap = [&](const char* stat) {
    return registry->AddGauge("sluice_trainer_logprob_gap_nats",
                              "Distance of the trainer's log-probs from those of the engine.",
                              with("stat", stat));
  };
  gap_mean_ = gap("mean");
  gap_max_ = gap("max");
  const auto clip = [&](const char* side) {
    return registry->AddGauge("sluice_trainer_clip_ratio",
                              "Share of tokens whose ratio was clipped.", with("side", side));
  };
  clip_high_ = clip("high");
  clip_low_ = clip("low");
  clip_dual_ = clip("dual");
  ess_ = registry->AddGauge("sluice_trainer_ess_ratio",
                            "Effective sample size of the sequences' weights.", labels_);
  mfu_ = registry->AddGauge(
      "sluice_trainer_mfu_ratio",
      "Model FLOPs of the last step per second of forward and backward, relative to the speed of a "
      "matrix product on this machine, times the number of trainer ranks.",
      labels_);
}

void Metrics::SetIfPresent(const StepResult& result, const char* name,
                           const metrics::Gauge& gauge) {
  if (const auto it = result.metrics.find(name); it != result.metrics.end()) gauge.Set(it->second);
}

void Metrics::RecordStep(const StepResult& result, const PhaseSeconds& seconds, int64_t version) {
  steps_.Add();
  tokens_.Add(static_cast<double>(result.tokens));
  wait_data_.Add(seconds.wait_data);
  forward_backward_.Add(seconds.forward_backward);
  optim_.Add(seconds.optim);
  apply_.Add(seconds.apply);
  publish_.Add(seconds.publish);
  checkpoint_.Add(seconds.checkpoint);
  version_.Set(static_cast<double>(version));
  if (!result.skipped.empty() && registry_ != nullptr) {
    metrics::Labels labels = labels_;
    labels["reason"] = result.skipped;
    registry_
        ->AddCounter("sluice_trainer_skipped_steps_total",
                     "Steps that did not change the weights, by reason.", labels)
        .Add();
    if (result.skipped == "nonfinite_logprob") nonfinite_logprob_.Add();
    if (result.skipped == "nonfinite_gradient") nonfinite_gradient_.Add();
    if (result.skipped == "nonfinite_value") nonfinite_value_.Add();
  }
  if (result.reward_count > 0) reward_mean_.Set(result.reward_mean);
  SetIfPresent(result, "reward_std", reward_std_);
  SetIfPresent(result, "flat_share", flat_groups_);
  if (!result.critic_alone) grad_norm_.Set(result.grad_norm);
  if (seconds.forward_backward > 0 && peak_flops_ > 0)
    mfu_.Set(result.flops / (seconds.forward_backward * peak_flops_));
  SetIfPresent(result, "entropy", entropy_);
  SetIfPresent(result, "kl", kl_ref_);
  SetIfPresent(result, "teacher_kl", kl_teacher_);
  SetIfPresent(result, "kl_behav_theta_k3", kl_behav_theta_);
  SetIfPresent(result, "absdiff_mean", gap_mean_);
  SetIfPresent(result, "absdiff_max", gap_max_);
  SetIfPresent(result, "clip_high", clip_high_);
  SetIfPresent(result, "clip_low", clip_low_);
  SetIfPresent(result, "clip_dual", clip_dual_);
  SetIfPresent(result, "ess_seq", ess_);
}

void Metrics::RecordEvaluation(const std::map<std::string, double>& values) {
  if (registry_ == nullptr) return;
  for (const auto& [name, value] : values) {
    const std::vector<std::string> parts = absl::StrSplit(name, '/');  // eval, dataset, stat
    if (parts.size() != 3) continue;
    metrics::Labels labels = labels_;
    labels["dataset"] = parts[1];
    labels["stat"] = parts[2];
    registry_
        ->AddGauge("sluice_trainer_eval",
                   "Values of the last evaluated version, by dataset and statistic.", labels)
        .Set(value);
  }
}

}  // namespace sluice::trainer
