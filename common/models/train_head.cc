#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
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

// Number of rows whose logits are in memory at once.
int64_t RowsAtOnce(int64_t vocab) { return std::max<int64_t>(1, kLogitsBytes / (vocab * 4)); }

// The logits of some rows at a time of x [N, H] under w [V, H].
class ChunkedLogits {
 public:
  ChunkedLogits(const at::Tensor& x, const at::Tensor& w, Operands operands)
      : x_(x),
        w_(w),
        operands_(operands),
        logits_(at::empty({std::min(x.size(0), RowsAtOnce(w.size(0))), w.size(0)}, x.options())) {}

  const at::Tensor& hidden() const { return x_; }
  const at::Tensor& head() const { return w_; }

  // Returns the logits [count, V] of the rows from `first` on, which the next call overwrites.
  float* Compute(int64_t first, int64_t count) {
    const int64_t hidden = x_.size(1), vocab = w_.size(0);
    Multiply(ConstData(x_) + first * hidden, ConstData(w_), count, vocab, hidden, operands_,
             MutableData(logits_), vocab);
    return MutableData(logits_);
  }

 private:
  const at::Tensor x_, w_;
  const Operands operands_;
  at::Tensor logits_;
};

// Calls work(first, count) for the rows 0 .. N - 1, some at a time.
template <typename Work>
void ForEachChunk(int64_t rows, int64_t vocab, const Work& work) {
  const int64_t most = RowsAtOnce(vocab);
  for (int64_t first = 0; first < rows; first += most) work(first, std::min(most, rows - first));
}

// Calls work(row) for `count` rows of logits, on several threads.
template <typename Work>
void ForEachRow(int64_t count, int64_t vocab, const Work& work) {
  ParallelFor(count, ProductGrain(vocab), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) work(r);
  });
}

// The reverse KL of N rows from a teacher. The rows are visited some at a time: Begin() comes
// before Compute() or ReplaceByGradient() of its rows, which several threads may call.
class TeacherKl {
 public:
  TeacherKl(const TeacherRows& teacher, int64_t rows, Operands operands)
      : k_(teacher.top_k < teacher.head.size(0) ? teacher.top_k : 0),
        kl_(at::empty({rows}, at::kFloat)),
        lse_(at::empty({rows}, at::kFloat)),
        ids_(at::empty({k_ == 0 ? 0 : rows, k_}, at::kInt)),
        top_(at::empty({k_ == 0 ? 0 : rows, k_}, at::kFloat)),
        logits_(teacher.hidden, teacher.head, operands) {}

  // What the backward pass needs, and an object for it. `saved` may have other tensors before.
  variable_list Save() const { return {kl_, lse_, ids_, top_, logits_.hidden(), logits_.head()}; }
  TeacherKl(const variable_list& saved, size_t first, Operands operands)
      : k_(saved[first + 2].size(1)),
        kl_(saved[first]),
        lse_(saved[first + 1]),
        ids_(saved[first + 2]),
        top_(saved[first + 3]),
        logits_(saved[first + 4], saved[first + 5], operands) {}

  const at::Tensor& kl() const { return kl_; }  // [N]

  // Computes the teacher's logits of the rows from `first` on. The backward pass does not need them
  // if it has the most likely ones.
  void Begin(int64_t first, int64_t count, bool backward) {
    first_ = first;
    if (!backward || k_ == 0) y_ = logits_.Compute(first, count);
  }

  // Computes the KL of a row from the student's logits z [V] and their log sum exp at the inverse
  // temperature b.
  void Compute(int64_t row, const float* z, float lse_z, float b) {
    const DecoderGradOps& ops = BestDecoderGradOps();
    float &l = MutableData(kl_)[row], &lse_y = MutableData(lse_)[row];
    float* y = y_ + (row - first_) * vocab();
    if (k_ == 0) {
      lse_y = ops.log_sum_exp(y, vocab(), b);
      l = ops.reverse_kl(z, y, vocab(), b, lse_z, lse_y);
      return;
    }
    int32_t* const ids = ids_.mutable_data_ptr<int32_t>() + row * k_;
    float* const top = MutableData(top_) + row * k_;
    FindTop(y, ids);
    for (int64_t i = 0; i < k_; ++i) top[i] = y[ids[i]];
    const std::vector<float> own = Gather(z, ids);
    lse_y = ops.log_sum_exp(top, k_, b);
    l = ops.reverse_kl(own.data(), top, k_, b, ops.log_sum_exp(own.data(), k_, b), lse_y);
  }

  // Calls replace(), which replaces the student's logits z by the gradient of other outputs, and
  // adds to them the gradient of the row's KL, from dl.
  template <typename Replace>
  void ReplaceByGradient(int64_t row, float* z, float lse_z, float b, float dl,
                         const Replace& replace) {
    const DecoderGradOps& ops = BestDecoderGradOps();
    const float l = ConstData(kl_)[row], lse_y = ConstData(lse_)[row];
    if (k_ == 0) {
      float* const y = y_ + (row - first_) * vocab();
      ops.reverse_kl_grad(z, y, vocab(), b, lse_z, lse_y, l, dl);
      replace();
      for (int64_t v = 0; v < vocab(); ++v) z[v] += y[v];
      return;
    }
    const int32_t* const ids = ids_.const_data_ptr<int32_t>() + row * k_;
    const float* const top = ConstData(top_) + row * k_;
    std::vector<float> gradient(top, top + k_);
    const std::vector<float> own = Gather(z, ids);
    ops.reverse_kl_grad(own.data(), gradient.data(), k_, b, ops.log_sum_exp(own.data(), k_, b),
                        lse_y, l, dl);
    replace();
    for (int64_t i = 0; i < k_; ++i) z[ids[i]] += gradient[i];
  }

 private:
  int64_t vocab() const { return logits_.head().size(0); }

  // Writes the ids of the k largest of y [V], in rising order. Of equal ones the lower id is first.
  void FindTop(const float* y, int32_t* ids) const {
    std::vector<int32_t> all(static_cast<size_t>(vocab()));
    std::iota(all.begin(), all.end(), 0);
    const auto before = [y](int32_t a, int32_t b) { return y[a] != y[b] ? y[a] > y[b] : a < b; };
    std::nth_element(all.begin(), all.begin() + k_ - 1, all.end(), before);
    std::sort(all.begin(), all.begin() + k_);
    std::copy_n(all.begin(), k_, ids);
  }

  std::vector<float> Gather(const float* z, const int32_t* ids) const {
    std::vector<float> out;
    for (int64_t i = 0; i < k_; ++i) out.push_back(z[ids[i]]);
    return out;
  }

  const int64_t k_;       // 0: all tokens are compared.
  at::Tensor kl_, lse_;   // [N] the KL; log sum exp of the teacher's logits that are compared.
  at::Tensor ids_, top_;  // [N, k] the teacher's most likely tokens and their logits.
  ChunkedLogits logits_;
  int64_t first_ = 0;
  float* y_ = nullptr;  // The teacher's logits from row first_ on.
};

// Number of tensors that ScoreFn saves before those of TeacherKl.
constexpr size_t kBeforeTeacher = 5;

struct ScoreFn : Function<ScoreFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                               const at::Tensor& targets, double temperature, Operands operands,
                               const TeacherRows* teacher) {
    const int64_t rows = x.size(0), vocab = w.size(0);
    at::Tensor lp = at::empty({rows}, x.options()), entropy = at::empty_like(lp),
               lse = at::empty_like(lp);
    const float divisor = static_cast<float>(temperature);
    const float inverse = static_cast<float>(1 / temperature);
    const int64_t* target = targets.const_data_ptr<int64_t>();
    float *lps = MutableData(lp), *entropies = MutableData(entropy), *lses = MutableData(lse);
    std::optional<TeacherKl> kl;
    if (teacher != nullptr) kl.emplace(*teacher, rows, operands);
    ChunkedLogits logits(x, w, operands);
    ForEachChunk(rows, vocab, [&](int64_t first, int64_t count) {
      const float* const z = logits.Compute(first, count);
      if (kl.has_value()) kl->Begin(first, count, /*backward=*/false);
      ForEachRow(count, vocab, [&](int64_t r) {
        const int64_t at = first + r;
        const TokenScore score =
            ScoreCpu(z + r * vocab, vocab, divisor, static_cast<int32_t>(target[at]));
        lps[at] = score.logprob, entropies[at] = score.entropy, lses[at] = score.logsumexp;
        if (kl.has_value()) kl->Compute(at, z + r * vocab, score.logsumexp, inverse);
      });
    });

    ctx->saved_data["inverse"] = 1 / temperature;
    ctx->saved_data["operands"] = static_cast<int64_t>(operands);
    variable_list saved = {x, w, targets, entropy, lse}, outputs = {lp, entropy};
    if (kl.has_value()) {
      absl::c_move(kl->Save(), std::back_inserter(saved));
      outputs.push_back(kl->kl());
    }
    ctx->save_for_backward(std::move(saved));
    return outputs;
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
    std::optional<TeacherKl> kl;
    at::Tensor dkl;
    if (grads.size() > 2 && grads[2].defined()) {
      kl.emplace(saved, kBeforeTeacher, operands);
      dkl = grads[2].contiguous();
    }
    float* const dxs = MutableData(dx);
    float* const dws = ctx->needs_input_grad(1) ? GradientSum(w) : nullptr;
    ChunkedLogits logits(x, w, operands);
    ForEachChunk(rows, vocab, [&](int64_t first, int64_t count) {
      float* const z = logits.Compute(first, count);
      if (kl.has_value()) kl->Begin(first, count, /*backward=*/true);
      ForEachRow(count, vocab, [&](int64_t r) {
        const int64_t at = first + r;
        float* const row = z + r * vocab;
        const auto score_grad = [&] {
          BestDecoderGradOps().score_grad(row, vocab, inverse, target[at], entropy[at], lse[at],
                                          g[at], h[at]);
        };
        if (!kl.has_value()) score_grad();
        else kl->ReplaceByGradient(at, row, lse[at], inverse, ConstData(dkl)[at], score_grad);
      });
      MultiplyGradX(z, ConstData(w), count, vocab, hidden, operands, dxs + first * hidden);
      if (dws != nullptr)
        MultiplyGradW(z, ConstData(x) + first * hidden, count, vocab, hidden, operands, dws);
    });
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> Score(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                              double temperature, Operands operands, const TeacherRows* teacher) {
  return ScoreFn::apply(x, w, targets, temperature, operands, teacher);
}

}  // namespace sluice::train_ops
