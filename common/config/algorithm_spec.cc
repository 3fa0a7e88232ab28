#include "common/config/algorithm_spec.h"

#include "sluice/job/v1/job.pb.h"

namespace sluice {

AlgorithmSpec AlgorithmSpecOf(const job::v1::JobSpec& spec) {
  const job::v1::Advantage& advantage = spec.algorithm().advantage();
  const job::v1::Loss& loss = spec.algorithm().loss();
  AlgorithmSpec out;
  out.advantage = {.kind = advantage.kind(),
                   .signal_filter = advantage.group_filter() == "signal",
                   .max_rejected_steps = advantage.max_rejected_steps(),
                   .truncated = advantage.truncated()};
  out.loss = {.kind = loss.kind(),
              .prox = loss.prox(),
              .clip_low = loss.clip_low(),
              .clip_high = loss.clip_high()};
  out.loss.dual = loss.has_dual() ? std::optional(loss.dual()) : std::nullopt;
  out.loss.tis = loss.has_tis() ? std::optional(loss.tis()) : std::nullopt;
  out.loss.veto = loss.has_veto() ? std::optional(loss.veto()) : std::nullopt;
  out.loss.tis_level = loss.tis_level();
  out.loss.aggregation = loss.aggregation();
  out.loss.kl = loss.kl();
  out.loss.kl_kind = loss.kl_kind();
  out.loss.entropy = loss.entropy();
  return out;
}

void ApplyPreset(const AlgorithmSpec& preset, job::v1::Algorithm* algorithm) {
  job::v1::Advantage& advantage = *algorithm->mutable_advantage();
  advantage.set_kind(preset.advantage.kind);
  advantage.clear_group_filter();
  if (preset.advantage.signal_filter) advantage.set_group_filter("signal");
  advantage.set_max_rejected_steps(static_cast<uint32_t>(preset.advantage.max_rejected_steps));
  advantage.set_truncated(preset.advantage.truncated);

  job::v1::Loss& loss = *algorithm->mutable_loss();
  loss.set_kind(preset.loss.kind);
  loss.set_prox(preset.loss.prox);
  loss.set_clip_low(preset.loss.clip_low);
  loss.set_clip_high(preset.loss.clip_high);
  loss.clear_dual();
  if (preset.loss.dual) loss.set_dual(*preset.loss.dual);
  loss.clear_tis();
  if (preset.loss.tis) loss.set_tis(*preset.loss.tis);
  loss.clear_veto();
  if (preset.loss.veto) loss.set_veto(*preset.loss.veto);
  loss.set_tis_level(preset.loss.tis_level);
  loss.set_aggregation(preset.loss.aggregation);
  loss.set_kl(preset.loss.kl);
  loss.set_kl_kind(preset.loss.kl_kind);
  loss.set_entropy(preset.loss.entropy);
}

}  // namespace sluice
