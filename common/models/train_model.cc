#include "common/models/train_model.h"

#include <ATen/ops/add.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/models/train_ops.h"

// T tokens, N rows to score, H hidden, D head size, V vocabulary.
namespace sluice {
namespace {

// Runs `work`, which returns a value, and turns what torch throws into a status.
template <typename Work>
auto Guard(absl::string_view what, Work work) -> absl::StatusOr<decltype(work())> {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat(what, ": ", e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(what, ": ", e.what()));
  }
}

at::Tensor Integers(absl::Span<const int64_t> values) {
  at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<int64_t>());
  return t;
}

absl::Status CheckRange(absl::string_view what, absl::Span<const int64_t> values, int64_t limit) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] >= limit) {
      return absl::InvalidArgumentError(absl::StrCat(what, " ", i, " is ", values[i], ", not in [0, ", limit, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBatch(const PackedBatch& batch, const ModelConfig& config) {
  const int64_t t = static_cast<int64_t>(batch.tokens.size());
  if (t == 0 || batch.positions.size() != batch.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", t, " tokens and ", batch.positions.size(), " positions"));
  }
  SLUICE_RETURN_IF_ERROR(CheckRange("token", batch.tokens, config.vocab_size));
  SLUICE_RETURN_IF_ERROR(CheckRange("position", batch.positions, config.max_context));
  SLUICE_RETURN_IF_ERROR(CheckRange("row to score", batch.score_rows, t));
  const std::vector<int64_t>& ends = batch.cu_seqlens;
  const bool rise = std::is_sorted(ends.begin(), ends.end());
  if (ends.size() < 2 || ends.front() != 0 || ends.back() != t || !rise) {
    return absl::InvalidArgumentError(absl::StrCat("cu_seqlens must rise from 0 to the number of tokens, ", t));
  }
  if (batch.prefix.empty()) return absl::OkStatus();
  if (batch.prefix.size() + 1 != ends.size()) {
    return absl::InvalidArgumentError(absl::StrCat(ends.size() - 1, " sequences and ", batch.prefix.size(), " prefixes"));
  }
  int64_t last = -1;  // The last sequence that may be a prefix.
  for (size_t b = 0; b < batch.prefix.size(); ++b) {
    if (batch.prefix[b] < 0) last = static_cast<int64_t>(b);
    else if (batch.prefix[b] != last) {
      return absl::InvalidArgumentError(absl::StrCat("prefix ", b, " is ", batch.prefix[b], ", not the last sequence before it without one, ", last));
    }
  }
  return absl::OkStatus();
}

struct Layer {
  at::Tensor input_norm, post_norm;        // [H]
  at::Tensor q_norm, k_norm;               // [D]; undefined without qk_norm.
  at::Tensor q_bias, k_bias, v_bias;       // [heads * D]; undefined without qkv_bias.
  at::Tensor q, k, v, o, gate, up, down;  // [outputs, inputs]
};

class Trainable final : public TrainModel {
 public:
  explicit Trainable(const ModelConfig& config) : config_(config), frequencies_(config.rope.Frequencies(config.head_dim)) {
    std::map<std::string, at::Tensor> by_name;
    for (const TensorSpec& spec : config.Parameters(DType::kF32)) {
      at::Tensor t = at::zeros(spec.shape, at::kFloat);
      t.requires_grad_(true);
      by_name[spec.name] = t;
      parameters_.push_back({spec.name, t});
    }
    embed_ = by_name["model.embed_tokens.weight"];
    norm_ = by_name["model.norm.weight"];
    head_ = config.tie_word_embeddings ? embed_ : by_name["lm_head.weight"];
    for (int64_t i = 0; i < config.num_layers; ++i) {
      const std::string p = absl::StrCat("model.layers.", i, "."), a = p + "self_attn.", m = p + "mlp.";
      Layer layer{.input_norm = by_name[p + "input_layernorm.weight"], .post_norm = by_name[p + "post_attention_layernorm.weight"]};
      if (config.qk_norm) layer.q_norm = by_name[a + "q_norm.weight"], layer.k_norm = by_name[a + "k_norm.weight"];
      if (config.qkv_bias) {
        layer.q_bias = by_name[a + "q_proj.bias"], layer.k_bias = by_name[a + "k_proj.bias"], layer.v_bias = by_name[a + "v_proj.bias"];
      }
      layer.q = by_name[a + "q_proj.weight"], layer.k = by_name[a + "k_proj.weight"];
      layer.v = by_name[a + "v_proj.weight"], layer.o = by_name[a + "o_proj.weight"];
      layer.gate = by_name[m + "gate_proj.weight"], layer.up = by_name[m + "up_proj.weight"], layer.down = by_name[m + "down_proj.weight"];
      layers_.push_back(std::move(layer));
    }
  }

  absl::Status Load(const TensorSet& weights) override {
    SLUICE_RETURN_IF_ERROR(CheckLayout(weights));
    for (size_t i = 0; i < parameters_.size(); ++i) {  // Written past autograd: the leaves stay leaves.
      float* to = parameters_[i].tensor.mutable_data_ptr<float>();
      SLUICE_RETURN_IF_ERROR(ConvertElements(weights.spec(i).dtype, weights.data(i), DType::kF32, to, weights.elements(i)));
    }
    return absl::OkStatus();
  }

  absl::Status Store(TensorSet* weights) const override {
    SLUICE_RETURN_IF_ERROR(CheckLayout(*weights));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const float* from = parameters_[i].tensor.const_data_ptr<float>();
      SLUICE_RETURN_IF_ERROR(ConvertElements(DType::kF32, from, weights->spec(i).dtype, weights->data(i), weights->elements(i)));
    }
    return absl::OkStatus();
  }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const ModelConfig& config() const override { return config_; }
  void ZeroGrad() override {
    for (Parameter& p : parameters_) p.tensor.mutable_grad() = at::Tensor();
  }

  absl::StatusOr<at::Tensor> Forward(const PackedBatch& batch) override {
    SLUICE_RETURN_IF_ERROR(CheckBatch(batch, config_));
    return Guard("forward", [&] { return Logits(batch); });
  }

 private:
  // Parameters and TensorSets are sorted alike.
  absl::Status CheckLayout(const TensorSet& weights) const {
    if (weights.size() != parameters_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("there are ", weights.size(), " weights, this ", config_.architecture, " has ", parameters_.size()));
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const TensorSpec& spec = weights.spec(i);
      if (spec.name != parameters_[i].name || parameters_[i].tensor.sizes() != at::IntArrayRef(spec.shape)) {
        return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name, " ", ShapeText(spec.dtype, spec.shape), " where ", parameters_[i].name,
                                                       " is needed, of another name or shape"));
      }
    }
    return absl::OkStatus();
  }

  // cos and sin [T, D / 2] of the tokens' angles, which are fp32 products as in transformers.
  std::pair<at::Tensor, at::Tensor> Angles(absl::Span<const int64_t> positions) const {
    const int64_t t = static_cast<int64_t>(positions.size()), half = static_cast<int64_t>(frequencies_.size());
    at::Tensor cos = at::empty({t, half}, at::kFloat), sin = at::empty({t, half}, at::kFloat);
    float *c = cos.mutable_data_ptr<float>(), *s = sin.mutable_data_ptr<float>();
    for (const int64_t p : positions) {
      for (const float f : frequencies_) {
        const float angle = static_cast<float>(p) * f;
        *c++ = std::cos(angle), *s++ = std::sin(angle);
      }
    }
    return {cos, sin};
  }

  at::Tensor Logits(const PackedBatch& batch) const {
    const auto [cos, sin] = Angles(batch.positions);
    at::Tensor x = at::embedding(embed_, Integers(batch.tokens));  // [T, H]
    for (const Layer& layer : layers_) {
      x = at::add(x, Attention(layer, train_ops::RmsNorm(x, layer.input_norm, config_.rms_norm_eps), cos, sin, batch));
      const at::Tensor n = train_ops::RmsNorm(x, layer.post_norm, config_.rms_norm_eps);
      x = at::add(x, train_ops::Linear(train_ops::SwiGlu(train_ops::Linear(n, layer.gate), train_ops::Linear(n, layer.up)), layer.down));
    }
    x = at::index_select(x, 0, Integers(batch.score_rows));  // [N, H]: the head sees only what is scored.
    return train_ops::Linear(train_ops::RmsNorm(x, norm_, config_.rms_norm_eps), head_);
  }

  at::Tensor Attention(const Layer& layer, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const PackedBatch& batch) const {
    at::Tensor q = train_ops::Linear(x, layer.q), k = train_ops::Linear(x, layer.k), v = train_ops::Linear(x, layer.v);
    if (config_.qkv_bias) q = at::add(q, layer.q_bias), k = at::add(k, layer.k_bias), v = at::add(v, layer.v_bias);
    if (config_.qk_norm) {
      q = train_ops::RmsNorm(q, layer.q_norm, config_.rms_norm_eps);
      k = train_ops::RmsNorm(k, layer.k_norm, config_.rms_norm_eps);
    }
    q = train_ops::Rope(q, cos, sin);
    k = train_ops::Rope(k, cos, sin);
    return train_ops::Linear(train_ops::CausalAttention(q, k, v, batch.cu_seqlens, batch.prefix, config_.head_dim, config_.sliding_window), layer.o);
  }

  const ModelConfig config_;
  const std::vector<float> frequencies_;  // [D / 2]
  std::vector<Parameter> parameters_;     // The tensors below are the same ones.
  at::Tensor embed_, norm_, head_;
  std::vector<Layer> layers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainModel>> TrainModel::Create(const ModelConfig& config) {
  return Guard("create model", [&]() -> std::unique_ptr<TrainModel> { return std::make_unique<Trainable>(config); });
}

absl::StatusOr<TokenScores> ScoreTokens(const at::Tensor& logits, absl::Span<const int64_t> targets, double temperature) {
  if (logits.dim() != 2 || logits.scalar_type() != at::kFloat || logits.size(0) != static_cast<int64_t>(targets.size()) || logits.size(1) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("logits must be fp32 [N, V] with N = ", targets.size(), " targets"));
  }
  if (!(temperature > 0)) return absl::InvalidArgumentError(absl::StrCat("temperature ", temperature, " is not above 0"));
  SLUICE_RETURN_IF_ERROR(CheckRange("target", targets, logits.size(1)));
  return Guard("score tokens", [&] {
    const std::vector<at::Tensor> out = train_ops::Score(logits.contiguous(), Integers(targets), temperature);
    return TokenScores{out[0], out[1]};
  });
}

absl::Status Backward(const at::Tensor& loss) {
  return Guard("backward", [&] {
           torch::autograd::backward({loss}, {});
           return true;
         }).status();
}

}  // namespace sluice
