#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "common/models/parallel.h"
#include "common/models/train_function.h"
#include "common/models/train_ops.h"
#include "common/models/train_products.h"
#include "kernels/decoder_grad/op.h"
#include "kernels/sample/op.h"

// Legend: N rows to score, H hidden size, V vocabulary.
namespace sluice::train_ops {
namespace {

// Bytes of the logits that are in memory at once.
constexpr int64_t kLogitsBytes = 128 << 20;

// Calls work(first, count, logits [count, V]) for the rows 0 .. N - 1, some at a time.
template <typename Work>
void ForEachLogits(const at::Tensor& x, const at::Tensor& w, Operands operands, const Work& work) {
  const int64_t rows = x.size(0), hidden = x.size(1), vocab = w.size(0),
                most = std::max<int64_t>(1, kLogitsBytes / (vocab * 4));
  at::Tensor logits = at::empty({std::min(rows, most), vocab}, x.options());
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    Multiply(ConstData(x) + first * hidden, ConstData(w), count, vocab, hidden, operands,
             MutableData(logits), vocab);
    work(first, count, MutableData(logits));
  }
}

struct ScoreFn : Function<ScoreFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                               const at::Tensor& targets, double temperature, Operands operands) {
    const int64_t rows = x.size(0), vocab = w.size(0);
    at::Tensor lp = at::empty({rows}, x.options()), entropy = at::empty_like(lp),
               lse = at::empty_like(lp);
    const float divisor = static_cast<float>(temperature);
    const int64_t* target = targets.const_data_ptr<int64_t>();
    float *lps = MutableData(lp), *entropies = MutableData(entropy), *lses = MutableData(lse);
    ForEachLogits(x, w, operands, [&](int64_t first, int64_t count, const float* z) {
      ParallelFor(count, ProductGrain(vocab), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t at = first + r;
          const TokenScore score =
              ScoreCpu(z + r * vocab, vocab, divisor, static_cast<int32_t>(target[at]));
          lps[at] = score.logprob, entropies[at] = score.entropy, lses[at] = score.logsumexp;
        }
      });
    });

    ctx->save_for_backward({x, w, targets, entropy, lse});
    ctx->saved_data["inverse"] = 1 / temperature;
    ctx->saved_data["operands"] = static_cast<int64_t>(operands);
    return {lp, entropy};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1];
    const int64_t rows = x.size(0), hidden = x.size(1), vocab = w.size(0);
    const auto or_zeros = [&](const at::Tensor& g) {
      return g.defined() ? g.contiguous() : at::zeros({rows}, x.options());
    };

    const at::Tensor dlp = or_zeros(grads[0]), dentropy = or_zeros(grads[1]);
    at::Tensor dx = at::empty_like(x);
    const auto operands = static_cast<Operands>(ctx->saved_data["operands"].toInt());
    const float inverse = static_cast<float>(ctx->saved_data["inverse"].toDouble());
    const int64_t* target = saved[2].const_data_ptr<int64_t>();
    const float *entropy = ConstData(saved[3]), *lse = ConstData(saved[4]), *g = ConstData(dlp),
                *h = ConstData(dentropy);
    float* const dxs = MutableData(dx);
    float* const dws = ctx->needs_input_grad(1) ? GradientSum(w) : nullptr;
    ForEachLogits(x, w, operands, [&](int64_t first, int64_t count, float* z) {
      ParallelFor(count, ProductGrain(vocab), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t at = first + r;
          BestDecoderGradOps().score_grad(z + r * vocab, vocab, inverse, target[at], entropy[at],
                                          lse[at], g[at], h[at]);
        }
      });
      MultiplyGradX(z, ConstData(w), count, vocab, hidden, operands, dxs + first * hidden);
      if (dws != nullptr)
        MultiplyGradW(z, ConstData(x) + first * hidden, count, vocab, hidden, operands, dws);
    });
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> Score(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                              double temperature, Operands operands) {
  return ScoreFn::apply(x, w, targets, temperature, operands);
}

}  // namespace sluice::train_ops
