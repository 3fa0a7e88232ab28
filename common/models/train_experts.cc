#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "common/models/moe.h"
#include "common/models/train_function.h"
#include "common/models/train_ops.h"

// Legend: T tokens, E experts, k experts per token.
namespace sluice::train_ops {
namespace {

// Computes from logits [T, E] the weights [T, k] of the experts `ids` [T, k].
struct WeighFn : Function<WeighFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const std::vector<int64_t>& ids, bool normalize) {
    const int64_t tokens = logits.size(0), experts = logits.size(1),
                  k = static_cast<int64_t>(ids.size()) / tokens;
    at::Tensor weights = at::empty({tokens, k}, logits.options());
    float* to = MutableData(weights);
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<uint16_t> chosen(ids.begin() + t * k, ids.begin() + (t + 1) * k);
      WeighExperts({ConstData(logits) + t * experts, static_cast<size_t>(experts)}, chosen,
                   normalize, to + t * k);
    }
    ctx->save_for_backward({logits, weights});
    ctx->saved_data["ids"] = ids;
    ctx->saved_data["normalize"] = normalize;
    return weights;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &logits = saved[0], &weights = saved[1], g = grads[0].contiguous();
    const std::vector<int64_t> ids = ctx->saved_data["ids"].toIntVector();
    const int64_t tokens = logits.size(0), experts = logits.size(1), k = weights.size(1);
    at::Tensor dlogits = at::empty_like(logits);
    float* to = MutableData(dlogits);
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<uint16_t> chosen(ids.begin() + t * k, ids.begin() + (t + 1) * k);
      WeighExpertsGrad({ConstData(logits) + t * experts, static_cast<size_t>(experts)}, chosen,
                       ctx->saved_data["normalize"].toBool(), ConstData(weights) + t * k,
                       ConstData(g) + t * k, to + t * experts);
    }
    return {dlogits, at::Tensor(), at::Tensor()};
  }
};

// Computes Mixture::balance from logits [T, E].
struct BalanceFn : Function<BalanceFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const LayerBalance& balance) {
    double sum = 0;
    for (int64_t t = 0; t < logits.size(0); ++t) {
      sum +=
          balance.token_weights[t] * WeighProbabilities(RowOf(logits, t), balance.expert_weights);
    }
    ctx->save_for_backward({logits});
    ctx->saved_data["token_weights"] =
        std::vector<double>(balance.token_weights.begin(), balance.token_weights.end());
    ctx->saved_data["expert_weights"] =
        std::vector<double>(balance.expert_weights.begin(), balance.expert_weights.end());
    return at::full({}, sum, at::kDouble);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor logits = ctx->get_saved_variables()[0];
    const std::vector<double> tokens = ctx->saved_data["token_weights"].toDoubleVector(),
                              experts = ctx->saved_data["expert_weights"].toDoubleVector();
    const double g = grads[0].item<double>();
    at::Tensor dlogits = at::empty_like(logits);
    for (int64_t t = 0; t < logits.size(0); ++t) {
      WeighProbabilitiesGrad(RowOf(logits, t), experts, g * tokens[t],
                             MutableData(dlogits) + t * logits.size(1));
    }
    return {dlogits, at::Tensor()};
  }

  static absl::Span<const float> RowOf(const at::Tensor& logits, int64_t t) {
    const int64_t experts = logits.size(1);
    return {ConstData(logits) + t * experts, static_cast<size_t>(experts)};
  }
};

// Returns the experts of each token, [T, k]: the recorded ones if there are any, else those that
// the router chooses.
std::vector<int64_t> ChooseExperts(const at::Tensor& logits, int64_t k, const uint16_t* recorded) {
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  std::vector<int64_t> ids(tokens * k);
  std::vector<uint16_t> chosen(k);
  for (int64_t t = 0; t < tokens; ++t) {
    if (recorded != nullptr && recorded[t * k] != kAnyExpert)
      std::copy_n(recorded + t * k, k, chosen.begin());
    else
      PickExperts({ConstData(logits) + t * experts, static_cast<size_t>(experts)},
                  absl::MakeSpan(chosen));
    std::copy(chosen.begin(), chosen.end(), ids.begin() + t * k);
  }
  return ids;
}

}  // namespace

Mixture MixExperts(const at::Tensor& x, const Experts& weights, int64_t k, bool normalize,
                   bool narrow, const uint16_t* recorded, const LayerBalance& balance) {
  const Operands operands = narrow ? Operands::kBf16 : Operands::kF32;
  const at::Tensor logits =
      Linear(x, weights.router, narrow ? Operands::kBf16Weight : Operands::kF32);
  const std::vector<int64_t> ids = ChooseExperts(logits, k, recorded);
  const at::Tensor shares = WeighFn::apply(logits, ids, normalize).view({-1, 1});  // [T k, 1]

  if (!balance.loads.empty()) {
    for (size_t i = 0; i < ids.size(); ++i)
      balance.loads[ids[i]] += balance.token_weights[static_cast<int64_t>(i) / k];
  }

  // By expert: its tokens, and for each of them the index of this pair in ids and shares.
  std::vector<std::vector<int64_t>> rows(weights.gate.size()), slots(rows.size());
  for (size_t i = 0; i < ids.size(); ++i)
    rows[ids[i]].push_back(static_cast<int64_t>(i) / k),
        slots[ids[i]].push_back(static_cast<int64_t>(i));

  // Each token's sum takes its experts in rising order, as in MoeMlp, because the order of
  // additions changes the bits.
  Mixture mixture{.out = at::zeros_like(x), .balance = {}};
  for (size_t e = 0; e < rows.size(); ++e) {
    if (rows[e].empty()) continue;
    const at::Tensor at = Integers(rows[e]), in = at::index_select(x, 0, at);
    const at::Tensor y =
        Linear(SwiGlu(Linear(in, weights.gate[e], operands), Linear(in, weights.up[e], operands)),
               weights.down[e], operands);
    mixture.out.index_add_(0, at, at::mul(y, at::index_select(shares, 0, Integers(slots[e]))));
  }
  if (!balance.expert_weights.empty()) mixture.balance = BalanceFn::apply(logits, balance);
  return mixture;
}

}  // namespace sluice::train_ops
