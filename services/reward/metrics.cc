#include "services/reward/metrics.h"

namespace sluice::reward {

Metrics::Metrics(metrics::Registry* registry, const std::string& job_name)
    : registry_(registry), job_name_(job_name) {
  series = registry->Hold("job_id", job_name);
  const auto evaluations = [&](const char* outcome) {
    return registry->AddCounter("sluice_reward_evaluations_total", "Answers scored, by outcome.",
                                {{"job_id", job_name}, {"reward", "task"}, {"outcome", outcome}});
  };
  ok = evaluations("ok");
  unscorable = evaluations("unscorable");
  late = evaluations("late");
  retried = evaluations("retried");
  seconds =
      registry->AddHistogram("sluice_reward_duration_seconds", "Time to score one answer.",
                             metrics::RpcSeconds(), {{"job_id", job_name}, {"reward", "task"}});
  leased = registry->AddGauge("sluice_reward_tasks",
                              "Tasks that this daemon has leased and not finished.",
                              {{"job_id", job_name}, {"state", "leased"}});
}

metrics::Counter Metrics::Shadow(const std::string& reward, const char* outcome) const {
  if (registry_ == nullptr) return {};
  return registry_->AddCounter(
      "sluice_reward_shadow_answers_total",
      "Answers that a candidate scored too, by how its score compares with the one in use.",
      {{"job_id", job_name_}, {"reward", reward}, {"outcome", outcome}});
}

metrics::Counter Metrics::ShadowDistance(const std::string& reward) const {
  if (registry_ == nullptr) return {};
  return registry_->AddCounter(
      "sluice_reward_shadow_distance_total",
      "Sum of the distances between a candidate's scores and those in use.",
      {{"job_id", job_name_}, {"reward", reward}});
}

metrics::Counter Metrics::ShadowSteps(const std::string& reward, const char* outcome) const {
  if (registry_ == nullptr) return {};
  return registry_->AddCounter(
      "sluice_reward_shadow_steps_total",
      "Answers whose steps a candidate or the reward in use gave rewards, by how these compare.",
      {{"job_id", job_name_}, {"reward", reward}, {"outcome", outcome}});
}

metrics::Counter Metrics::ShadowStepDistance(const std::string& reward) const {
  if (registry_ == nullptr) return {};
  return registry_->AddCounter(
      "sluice_reward_shadow_step_distance_total",
      "Sum of the distances between a candidate's rewards of steps and those in use.",
      {{"job_id", job_name_}, {"reward", reward}});
}

}  // namespace sluice::reward
