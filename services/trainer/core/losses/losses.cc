#include "services/trainer/core/losses/losses.h"

#include <limits>
#include <numeric>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "common/algorithms/correction.h"
#include "common/algorithms/kl.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/proximal.h"

namespace sluice {
namespace {

// A scalar whose value and whose gradient with respect to `x` are given.
class KnownGradient : public torch::autograd::Function<KnownGradient> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& gradient, double value) {
    context->save_for_backward({gradient});
    return at::full({}, value, x.options());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list upstream) {
    return {upstream[0] * context->get_saved_variables()[0], at::Tensor(), at::Tensor()};
  }
};

// sum_t coefficient_t value_t, with the gradient coefficient_t grad_t.
at::Tensor WeightedSum(const at::Tensor& lp_theta, const std::vector<double>& coefficient,
                       const std::vector<float>& value, const std::vector<float>& grad) {
  at::Tensor gradient = at::empty({lp_theta.size(0)}, at::kFloat);
  float* out = gradient.data_ptr<float>();
  double sum = 0;
  for (size_t t = 0; t < value.size(); ++t) {
    sum += coefficient[t] * value[t];
    out[t] = static_cast<float>(coefficient[t] * grad[t]);
  }
  return KnownGradient::apply(lp_theta, gradient.to(lp_theta.device()), sum);
}

}  // namespace

LossTerms ComputeLossTerms(const LossRule& rule, const at::Tensor& lp_theta,
                           const at::Tensor& entropy, PolicyTokens tokens,
                           absl::Span<const double> sequence_weight, PolicyStats* stats,
                           absl::Span<const int32_t> staleness, DistillSums* distill) {
  TORCH_CHECK(lp_theta.dim() == 1 && lp_theta.scalar_type() == at::kFloat,
              "lp_theta must be [N] fp32");
  const int64_t n = lp_theta.size(0);
  TORCH_CHECK(static_cast<int64_t>(sequence_weight.size()) == tokens.sequences() &&
                  (n == 0 || tokens.offsets.back() == n),
              "offsets and sequence weights must cover the ", n, " tokens of lp_theta");
  const at::Tensor on_cpu = lp_theta.detach().to(at::kCPU).contiguous();
  tokens.lp_theta = absl::MakeConstSpan(on_cpu.data_ptr<float>(), static_cast<size_t>(n));

  std::vector<float> loglinear;
  if (rule.prox == ProxMode::kLoglinear) {
    loglinear = LoglinearProximal(tokens.lp_theta, tokens.lp_behav, staleness);
    tokens.lp_prox = loglinear;
  }

  std::vector<float> own;
  if (rule.correction.split) {
    own = OwnVersionLogprobs(tokens.lp_snap,
                             tokens.lp_prox.empty() ? tokens.lp_theta : tokens.lp_prox, staleness);
    tokens.lp_snap = own;
  }

  std::vector<float> distilled;
  if (rule.distill.kind == DistillKind::kSampled) {
    DistillSums unused;
    distilled = DistilledAdvantages(rule.distill, rule.prox, tokens,
                                    distill == nullptr ? &unused : distill);
    tokens.advantage = distilled;
  }

  std::vector<double> coefficient(n);
  for (int64_t i = 0; i < tokens.sequences(); ++i) {
    for (int64_t t = tokens.offsets[i]; t < tokens.offsets[i + 1]; ++t)
      coefficient[t] = sequence_weight[i];
  }

  const Correction correction = ComputeCorrection(rule.correction, tokens);
  const ClipCounts clipped = rule.clip.has_value()
                                 ? CountClipped(*rule.clip, rule.prox, tokens, rule.sequence_ratio)
                                 : ClipCounts{};
  stats->Add(tokens, correction, clipped);

  LossTerms terms;
  std::vector<float> value(n), grad(n);
  ComputePolicyLoss(rule.loss, rule.prox, tokens, correction, absl::MakeSpan(value),
                    absl::MakeSpan(grad));
  terms.policy = WeightedSum(lp_theta, coefficient, value, grad);
  terms.kl = terms.entropy = at::zeros({}, lp_theta.options().requires_grad(false));

  if (rule.kl != nullptr) {
    ComputeKlLoss(rule.kl, tokens, absl::MakeSpan(value), absl::MakeSpan(grad));
    terms.kl = WeightedSum(lp_theta, coefficient, value, grad);
    terms.kl_sum = std::accumulate(value.begin(), value.end(), 0.0);
  }
  if (rule.entropy_coef != 0 && entropy.defined()) {
    TORCH_CHECK(entropy.dim() == 1 && entropy.size(0) == n, "entropy must be [N]");
    const at::Tensor weights =
        at::tensor(coefficient, at::kDouble).to(entropy.device(), entropy.scalar_type());
    terms.entropy = (entropy * weights).sum();
  }
  return terms;
}

at::Tensor ValueTerm(const at::Tensor& values, absl::Span<const float> old_values,
                     absl::Span<const float> targets, std::optional<double> clip,
                     ValueStats* stats) {
  TORCH_CHECK(values.dim() == 1 && values.scalar_type() == at::kFloat, "values must be [N] fp32");
  const size_t n = static_cast<size_t>(values.size(0));
  TORCH_CHECK(old_values.size() == n && targets.size() == n, "there must be an old value and a ",
              "target for each of the ", n, " values");
  const at::Tensor on_cpu = values.detach().to(at::kCPU).contiguous();
  const float* const v = on_cpu.const_data_ptr<float>();
  const std::vector<double> one(n, 1.0);
  std::vector<float> loss(n), grad(n);
  for (size_t t = 0; t < n; ++t) {
    const LossValue token = ValueLoss(v[t], old_values[t], targets[t],
                                      clip.value_or(std::numeric_limits<double>::infinity()));
    stats->Add(v[t], targets[t], token.value);
    loss[t] = static_cast<float>(token.value);
    grad[t] = static_cast<float>(token.grad);
  }
  return WeightedSum(values, one, loss, grad);
}

at::Tensor SftTerm(const at::Tensor& lp_theta) { return -lp_theta.sum(); }

}  // namespace sluice
