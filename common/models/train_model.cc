#include "common/models/train_model.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/models/moe.h"
#include "common/models/train_ops.h"

// Legend: T tokens, N rows to score, H hidden size, D head size, F width of the MLP, V vocabulary.
namespace sluice {
namespace {

// Runs `work`, which returns a value, and turns exceptions of torch into a status.
template <typename Work>
auto CatchExceptions(absl::string_view what, Work work) -> absl::StatusOr<decltype(work())> {
  try {
    return work();
  } catch (const StatusException& e) {
    return e.status();
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat(what, ": ", e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(what, ": ", e.what()));
  }
}

void ThrowIfError(absl::Status status) {
  if (!status.ok()) throw StatusException(std::move(status));
}

absl::Status CheckRange(absl::string_view what, absl::Span<const int64_t> values, int64_t limit) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] >= limit) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " ", i, " is ", values[i], ", not in [0, ", limit, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRouting(const PackedBatch& batch, const ModelConfig& config) {
  if (batch.routing.empty()) return absl::OkStatus();
  const size_t k = static_cast<size_t>(config.experts_per_token),
               sets = batch.tokens.size() * config.num_layers;
  if (config.num_experts == 0 || batch.routing.size() != sets * k) {
    return absl::InvalidArgumentError(absl::StrCat("routing names ", batch.routing.size(),
                                                   " experts, but the batch needs ",
                                                   config.num_experts == 0 ? 0 : sets * k));
  }
  for (size_t i = 0; i < batch.routing.size(); i += k) {
    if (batch.routing[i] == kAnyExpert) continue;
    for (size_t j = i; j < i + k; ++j) {
      if (batch.routing[j] >= config.num_experts ||
          (j > i && batch.routing[j] <= batch.routing[j - 1])) {
        return absl::InvalidArgumentError(
            absl::StrCat("expert ", j, " of the routing is ", batch.routing[j],
                         "; a token's experts must rise and be below ", config.num_experts));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTokenWeights(const PackedBatch& batch, absl::Span<const float> weights,
                               const ModelConfig& config) {
  if (config.num_experts > 0 && weights.size() == batch.tokens.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there are weights of ", weights.size(), " of ", batch.tokens.size(),
                   " tokens for the load of ", config.num_experts,
                   " experts; a model with experts and a weight for each token are needed"));
}

absl::Status CheckBatch(const PackedBatch& batch, const ModelConfig& config) {
  const int64_t t = static_cast<int64_t>(batch.tokens.size());
  if (t == 0 || batch.positions.size() != batch.tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch has ", t, " tokens and ", batch.positions.size(),
                     " positions; it must have one position per token, and at least one token"));
  }
  SLUICE_RETURN_IF_ERROR(CheckRange("token", batch.tokens, config.vocab_size));
  SLUICE_RETURN_IF_ERROR(CheckRange("position", batch.positions, config.max_context));
  SLUICE_RETURN_IF_ERROR(CheckRange("row to score", batch.score_rows, t));

  const std::vector<int64_t>& cu_seqlens = batch.cu_seqlens;
  const bool rise = std::is_sorted(cu_seqlens.begin(), cu_seqlens.end());
  if (cu_seqlens.size() < 2 || cu_seqlens.front() != 0 || cu_seqlens.back() != t || !rise) {
    return absl::InvalidArgumentError(
        absl::StrCat("cu_seqlens must rise from 0 to the number of tokens, ", t));
  }
  SLUICE_RETURN_IF_ERROR(CheckRouting(batch, config));

  if (batch.prefix.empty()) return absl::OkStatus();
  if (batch.prefix.size() + 1 != cu_seqlens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the batch has ", cu_seqlens.size() - 1,
                                                   " sequences, but ", batch.prefix.size(),
                                                   " prefixes"));
  }
  int64_t last = -1;  // The last sequence that may be a prefix.
  for (size_t b = 0; b < batch.prefix.size(); ++b) {
    if (batch.prefix[b] < 0) last = static_cast<int64_t>(b);
    else if (batch.prefix[b] != last) {
      return absl::InvalidArgumentError(
          absl::StrCat("prefix ", b, " is ", batch.prefix[b],
                       ", but the last sequence before it without a prefix is ", last));
    }
  }
  return absl::OkStatus();
}

struct Layer {
  at::Tensor input_norm, post_norm;          // [H]
  at::Tensor q_norm, k_norm;                 // [D]; undefined without qk_norm.
  at::Tensor q_bias, k_bias, v_bias;         // [heads * D]; undefined without qkv_bias.
  at::Tensor o_bias;                         // [H]; undefined without o_bias.
  at::Tensor gate_bias, up_bias, down_bias;  // [F], [F], [H]; undefined without mlp_bias.
  // [outputs, inputs]. gate, up and down are undefined with experts.
  at::Tensor q, k, v, o, gate, up, down;
  train_ops::Experts experts;  // Empty without experts.
};

class Trainable final : public TrainModel {
 public:
  Trainable(const ModelConfig& config, DType dtype, const ActivationMemory& activations, bool lent)
      : config_(config),
        narrow_(dtype == DType::kBF16),
        activations_(activations),
        frequencies_(config.rope.Frequencies(config.head_dim)) {
    std::map<std::string, at::Tensor> by_name;
    for (const TensorSpec& spec : config.Parameters(DType::kF32)) {
      // Memory that is not written costs nothing until LendMemory() replaces it.
      at::Tensor t = lent ? at::empty(spec.shape, at::kFloat) : at::zeros(spec.shape, at::kFloat);
      if (lent) LendMemory(t, nullptr);
      t.requires_grad_(true);
      by_name[spec.name] = t;
      parameters_.push_back({spec.name, t});
    }

    embed_ = by_name["model.embed_tokens.weight"];
    norm_ = by_name["model.norm.weight"];
    head_ = config.tie_word_embeddings ? embed_ : by_name["lm_head.weight"];

    for (int64_t i = 0; i < config.num_layers; ++i) {
      const std::string p = absl::StrCat("model.layers.", i, "."), a = p + "self_attn.",
                        m = p + "mlp.";
      Layer layer{.input_norm = by_name[p + "input_layernorm.weight"],
                  .post_norm = by_name[p + "post_attention_layernorm.weight"]};

      if (config.qk_norm)
        layer.q_norm = by_name[a + "q_norm.weight"], layer.k_norm = by_name[a + "k_norm.weight"];
      if (config.qkv_bias) {
        layer.q_bias = by_name[a + "q_proj.bias"], layer.k_bias = by_name[a + "k_proj.bias"],
        layer.v_bias = by_name[a + "v_proj.bias"];
      }
      layer.q = by_name[a + "q_proj.weight"], layer.k = by_name[a + "k_proj.weight"];
      layer.v = by_name[a + "v_proj.weight"], layer.o = by_name[a + "o_proj.weight"];
      if (config.o_bias) layer.o_bias = by_name[a + "o_proj.bias"];

      if (config.mlp_bias) {
        layer.gate_bias = by_name[m + "gate_proj.bias"],
        layer.up_bias = by_name[m + "up_proj.bias"],
        layer.down_bias = by_name[m + "down_proj.bias"];
      }
      if (config.num_experts == 0) {
        layer.gate = by_name[m + "gate_proj.weight"], layer.up = by_name[m + "up_proj.weight"],
        layer.down = by_name[m + "down_proj.weight"];
      } else {
        layer.experts.router = by_name[m + "gate.weight"];
      }
      for (int64_t e = 0; e < config.num_experts; ++e) {
        const std::string one = absl::StrCat(m, "experts.", e, ".");
        layer.experts.gate.push_back(by_name[one + "gate_proj.weight"]);
        layer.experts.up.push_back(by_name[one + "up_proj.weight"]);
        layer.experts.down.push_back(by_name[one + "down_proj.weight"]);
      }
      layers_.push_back(std::move(layer));
    }
  }

  absl::Status Load(const TensorSet& weights) override {
    SLUICE_RETURN_IF_ERROR(CheckLayout(weights));
    // Write to the memory directly, so that autograd does not see it and the leaves stay leaves.
    for (size_t i = 0; i < parameters_.size(); ++i) {
      float* to = parameters_[i].tensor.mutable_data_ptr<float>();
      SLUICE_RETURN_IF_ERROR(ConvertElements(weights.spec(i).dtype, weights.data(i), DType::kF32,
                                             to, weights.elements(i)));
    }
    return absl::OkStatus();
  }

  absl::Status Store(TensorSet* weights) const override {
    SLUICE_RETURN_IF_ERROR(CheckLayout(*weights));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const float* from = parameters_[i].tensor.const_data_ptr<float>();
      SLUICE_RETURN_IF_ERROR(ConvertElements(DType::kF32, from, weights->spec(i).dtype,
                                             weights->data(i), weights->elements(i)));
    }
    return absl::OkStatus();
  }

  // Both the parameters and a TensorSet are sorted by name, so they are compared in order.
  absl::Status CheckLayout(const TensorSet& weights) const override {
    if (weights.size() != parameters_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("there are ", weights.size(),
                                                     " weights, but this ", config_.architecture,
                                                     " has ", parameters_.size()));
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const TensorSpec& spec = weights.spec(i);
      if (spec.name != parameters_[i].name ||
          parameters_[i].tensor.sizes() != at::IntArrayRef(spec.shape)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", spec.name, " ", ShapeText(spec.dtype, spec.shape), " is in the place of ",
            parameters_[i].name, ": its name or shape differs"));
      }
    }
    return absl::OkStatus();
  }

  void SetUnitMemory(UnitMemory* memory) override { memory_ = memory; }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const ModelConfig& config() const override { return config_; }
  void ZeroGrad() override {
    for (Parameter& p : parameters_) p.tensor.mutable_grad() = at::Tensor();
  }

  absl::StatusOr<at::Tensor> Logits(const PackedBatch& batch) override {
    SLUICE_RETURN_IF_ERROR(CheckBatch(batch, config_));
    return RunPass("forward", Pass::kForward,
                   [&] { return Linear(ComputeHidden(batch).rows, head_); });
  }

  absl::StatusOr<TeacherRows> HeadInput(const PackedBatch& batch) override {
    SLUICE_RETURN_IF_ERROR(CheckBatch(batch, config_));
    return RunPass("forward", Pass::kForward, [&] {
      return TeacherRows{.hidden = ComputeHidden(batch).rows, .head = head_.detach()};
    });
  }

  absl::StatusOr<TokenScores> Score(const PackedBatch& batch, absl::Span<const int64_t> targets,
                                    double temperature, const TeacherRows* teacher,
                                    const RouterBalance* balance) override {
    SLUICE_RETURN_IF_ERROR(CheckScores(batch, targets, temperature));
    if (teacher != nullptr && (teacher->head.size(0) != config_.vocab_size ||
                               teacher->hidden.size(0) != static_cast<int64_t>(targets.size()))) {
      return absl::InvalidArgumentError(absl::StrCat("the teacher has ", teacher->hidden.size(0),
                                                     " rows and a vocabulary of ",
                                                     teacher->head.size(0), " tokens; wanted are ",
                                                     targets.size(), " and ", config_.vocab_size));
    }
    if (balance != nullptr) {
      SLUICE_RETURN_IF_ERROR(CheckTokenWeights(batch, balance->token_weights, config_));
      const int64_t wanted = config_.num_layers * config_.num_experts;
      if (static_cast<int64_t>(balance->expert_weights.size()) != wanted) {
        return absl::InvalidArgumentError(absl::StrCat("there are ", balance->expert_weights.size(),
                                                       " weights of experts, but the model has ",
                                                       wanted, " experts in all layers together"));
      }
    }
    return RunPass("score tokens", Pass::kForward, [&] {
      const Hidden hidden = ComputeHidden(batch, balance);
      const std::vector<at::Tensor> out = train_ops::Score(
          hidden.rows, head_, train_ops::Integers(targets), temperature, operands(), teacher);
      return TokenScores{out[0], out[1], teacher == nullptr ? at::Tensor() : out[2],
                         hidden.balance};
    });
  }

  bool CanShare(const PackedBatch& batch, int world) const override {
    const int64_t t = static_cast<int64_t>(batch.tokens.size());
    const bool keeps_all =
        activations_.recompute == Recompute::kNone && c10::GradMode::is_enabled();
    return !keeps_all && IsInParts(batch) && t >= 2 * world;
  }

  absl::StatusOr<TokenScores> ScoreShare(const PackedBatch& batch,
                                         absl::Span<const int64_t> targets, double temperature,
                                         const SequenceShare& share,
                                         std::vector<size_t>* scored) override {
    SLUICE_RETURN_IF_ERROR(CheckScores(batch, targets, temperature));
    if (!CanShare(batch, share.world)) {
      return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch.tokens.size(),
                                                     " tokens cannot be shared by ", share.world,
                                                     " processes"));
    }
    return RunPass("score a share", Pass::kForward, [&] {
      const auto parts = std::make_shared<Parts>(CutIntoParts(MakeContext(batch), batch, &share));
      PackedBatch own;
      own.tokens = OwnOf(*parts, batch.tokens);
      std::vector<int64_t> own_targets;
      scored->clear();
      for (size_t i = 0; i < targets.size(); ++i) {
        const int64_t row = parts->PlaceOf(batch.score_rows[i]);
        if (row < 0) continue;
        own.score_rows.push_back(row);
        own_targets.push_back(targets[i]);
        scored->push_back(i);
      }
      if (scored->empty()) own.score_rows = {0}, own_targets = {0};
      const Hidden hidden = RunLayers(own, nullptr, parts);
      const std::vector<at::Tensor> out = train_ops::Score(
          hidden.rows, head_, train_ops::Integers(own_targets), temperature, operands());
      return TokenScores{out[0], out[1], {}, {}};
    });
  }

  absl::StatusOr<std::vector<double>> CountExperts(const PackedBatch& batch,
                                                   absl::Span<const float> token_weights) override {
    SLUICE_RETURN_IF_ERROR(CheckBatch(batch, config_));
    SLUICE_RETURN_IF_ERROR(CheckTokenWeights(batch, token_weights, config_));
    return RunPass("count experts", Pass::kForward, [&] {
      const c10::NoGradGuard no_grad;
      std::vector<double> loads(config_.num_layers * config_.num_experts);
      const RouterBalance weights{.token_weights = {token_weights.begin(), token_weights.end()},
                                  .expert_weights = {}};
      ComputeHidden(batch, &weights, absl::MakeSpan(loads));
      return loads;
    });
  }

  absl::StatusOr<at::Tensor> Project(const PackedBatch& batch, const at::Tensor& weight,
                                     const at::Tensor& bias) override {
    SLUICE_RETURN_IF_ERROR(CheckBatch(batch, config_));
    return RunPass("project", Pass::kForward, [&] {
      const at::Tensor out =
          train_ops::Linear(ComputeHidden(batch).rows, weight, train_ops::Operands::kF32);
      return at::add(out, bias).squeeze(1);
    });
  }

  absl::Status Backward(const at::Tensor& loss, bool keep_graph) override {
    return RunPass("backward", Pass::kBackward,
                   [&] {
                     torch::autograd::backward({loss}, {}, keep_graph);
                     return true;
                   })
        .status();
  }

 private:
  using Pass = UnitMemory::Pass;

  absl::Status CheckScores(const PackedBatch& batch, absl::Span<const int64_t> targets,
                           double temperature) const {
    SLUICE_RETURN_IF_ERROR(CheckBatch(batch, config_));
    if (targets.size() != batch.score_rows.size()) {
      return absl::InvalidArgumentError(absl::StrCat("there are ", targets.size(), " targets, but ",
                                                     batch.score_rows.size(), " rows to score"));
    }
    SLUICE_RETURN_IF_ERROR(CheckRange("target", targets, config_.vocab_size));
    if (!(temperature > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("temperature ", temperature, " is not above 0"));
    }
    return absl::OkStatus();
  }

  void Enter(Pass pass, int64_t unit) const {
    if (memory_ != nullptr) ThrowIfError(memory_->Enter(pass, unit));
  }
  void Leave(Pass pass, int64_t unit) const {
    if (memory_ != nullptr) ThrowIfError(memory_->Leave(pass, unit));
  }
  // Returns what `work` returns, which is the whole pass.
  template <typename Work>
  auto RunPass(absl::string_view what, Pass pass, const Work& work) const
      -> absl::StatusOr<decltype(work())> {
    return CatchExceptions(what, [&] {
      Enter(pass, 0);
      auto result = work();
      Leave(pass, 0);
      return result;
    });
  }

  // Makes the backward pass move from layer i to layer i - 1 once the gradient of x, the input of
  // layer i, is complete. Nothing of layer i is left to do then: torch runs the nodes that were
  // made last first, and those that add to a parameter's gradient before all others.
  void MoveBackwardAt(const at::Tensor& x, int64_t i) const {
    if (memory_ == nullptr || !x.requires_grad()) return;
    x.register_hook([this, i](const at::Tensor&) {
      if (i < config_.num_layers) Leave(Pass::kBackward, i + 1);
      if (i > 0) Enter(Pass::kBackward, i);
    });
  }

  // Returns the cosines and sines [T, D / 2] of the tokens' angles. An angle is a product in fp32,
  // as in transformers.
  std::pair<at::Tensor, at::Tensor> ComputeAngles(absl::Span<const int64_t> positions) const {
    const int64_t t = static_cast<int64_t>(positions.size()),
                  half = static_cast<int64_t>(frequencies_.size());
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

  // What the layers take besides their input: for all rows of a batch, or for those of a part.
  struct Context {
    at::Tensor cos, sin;  // [T, D / 2]
    std::vector<int64_t> cu_seqlens, prefix;
    std::vector<std::vector<uint16_t>> experts;  // By layer; see RecordedExperts().
    RouterBalance balance;                       // Empty if none is wanted.
    absl::Span<double> loads;                    // [layers, E], or empty; see LayerBalance.
  };

  Context MakeContext(const PackedBatch& batch) const {
    Context context{.cu_seqlens = batch.cu_seqlens, .prefix = batch.prefix};
    std::tie(context.cos, context.sin) = ComputeAngles(batch.positions);
    for (size_t i = 0; i < layers_.size(); ++i)
      context.experts.push_back(RecordedExperts(batch, i));
    return context;
  }

  struct Hidden {
    at::Tensor rows;     // [N, H], of the rows to score, which the output head takes.
    at::Tensor balance;  // TokenScores::router_balance.
  };
  Hidden ComputeHidden(const PackedBatch& batch, const RouterBalance* balance = nullptr,
                       absl::Span<double> loads = {}) const {
    // Shared with the backward pass, which may run the layers again.
    const auto context = std::make_shared<Context>(MakeContext(batch));
    if (balance != nullptr) context->balance = *balance;
    context->loads = loads;
    const bool keeps_all =
        activations_.recompute == Recompute::kNone && c10::GradMode::is_enabled();
    std::shared_ptr<const Parts> parts;
    if (IsInParts(batch) && !keeps_all)
      parts = std::make_shared<Parts>(CutIntoParts(*context, batch, nullptr));
    return RunLayers(batch, context, parts);
  }

  // Whether the batch is one sequence that is too long to be computed at once.
  bool IsInParts(const PackedBatch& batch) const {
    return activations_.part_tokens > 0 && batch.cu_seqlens.size() == 2 &&
           static_cast<int64_t>(batch.tokens.size()) > activations_.part_tokens;
  }

  struct Parts;
  // Runs all layers on batch.tokens in `context`, or in parts if `parts` is not null. The tokens
  // and rows of the batch are then those of the parts that this process computes.
  Hidden RunLayers(const PackedBatch& batch, const std::shared_ptr<const Context>& context,
                   const std::shared_ptr<const Parts>& parts) const {
    Hidden hidden;
    at::Tensor x = train_ops::Embed(embed_, batch.tokens, narrow_);  // [T, H]
    const bool again =
        RecomputesLayers(activations_.recompute, config_, x.size(0), activations_.most_kept_bytes);
    MoveBackwardAt(x, 0);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const int64_t unit = static_cast<int64_t>(i) + 1;
      Enter(Pass::kForward, unit);
      const auto run = [this, context, i](const at::Tensor& in) { return Run(i, in, *context); };
      const std::vector<at::Tensor> out = parts != nullptr ? RunInParts(i, x, parts)
                                          : again          ? train_ops::ComputeAgain(x, run)
                                                           : run(x);
      x = out[0];
      if (out.size() > 1) hidden.balance = i == 0 ? out[1] : at::add(hidden.balance, out[1]);
      Leave(Pass::kForward, unit);
      MoveBackwardAt(x, unit);
    }
    hidden.rows = Norm(at::index_select(x, 0, train_ops::Integers(batch.score_rows)), norm_);
    return hidden;
  }

  // Runs layer i on x [T, H]. Returns its output and, if the loss wants it, Mixture::balance.
  std::vector<at::Tensor> Run(size_t i, const at::Tensor& x, const Context& context) const {
    const Layer& layer = layers_[i];
    const at::Tensor normed = Norm(x, layer.input_norm), q = Queries(layer, normed, context);
    const auto [k, v] = KeysAndValues(layer, normed, context);
    const at::Tensor attended =
        train_ops::CausalAttention(q, k, v, context.cu_seqlens, context.prefix, config_.head_dim,
                                   config_.sliding_window, narrow_);
    return Finish(i, x, attended, context);
  }

  // The parts of a sequence that is too long to be computed at once.
  struct Parts {
    // As in train_ops::LayerParts.
    std::vector<int64_t> starts;
    std::vector<int> owners;
    SequenceShare share;
    std::vector<Context> contexts;

    bool IsOwn(size_t p) const { return owners.empty() || owners[p] == share.rank; }
    // The place of a row of the sequence among those of own parts, or -1 if it is in another part.
    int64_t PlaceOf(int64_t row) const {
      int64_t place = 0;
      for (size_t p = 0; p + 1 < starts.size(); ++p) {
        const bool here = row < starts[p + 1];
        if (here) return IsOwn(p) ? place + row - starts[p] : -1;
        if (IsOwn(p)) place += starts[p + 1] - starts[p];
      }
      return -1;
    }
  };

  // Returns the elements of own parts.
  static std::vector<int64_t> OwnOf(const Parts& parts, absl::Span<const int64_t> elements) {
    std::vector<int64_t> own;
    for (size_t p = 0; p + 1 < parts.starts.size(); ++p) {
      if (parts.IsOwn(p))
        own.insert(own.end(), &elements[parts.starts[p]],
                   &elements[parts.starts[p]] + parts.starts[p + 1] - parts.starts[p]);
    }
    return own;
  }

  // `share` is null if this process computes all parts.
  Parts CutIntoParts(const Context& whole, const PackedBatch& batch,
                     const SequenceShare* share) const {
    Parts parts;
    const int64_t t = static_cast<int64_t>(batch.tokens.size()), k = config_.experts_per_token;
    int64_t most = activations_.part_tokens;
    if (share != nullptr) {
      // Later parts attend to more keys, so each rank gets parts from both ends.
      const int64_t turns = 2 * share->world;
      most = std::min(most, (t + turns - 1) / turns);
      for (int64_t p = 0; p * most < t; ++p) {
        const int64_t turn = p % turns;
        parts.owners.push_back(static_cast<int>(std::min(turn, turns - 1 - turn)));
      }
      parts.share = *share;
    }
    for (int64_t begin = 0; begin < t; begin += most) {
      const int64_t n = std::min(most, t - begin);
      parts.starts.push_back(begin);
      Context& context = parts.contexts.emplace_back();
      context.cos = whole.cos.narrow(0, begin, n), context.sin = whole.sin.narrow(0, begin, n);
      for (const std::vector<uint16_t>& layer : whole.experts) {
        std::vector<uint16_t>& rows = context.experts.emplace_back();
        if (!layer.empty()) rows.assign(&layer[begin * k], &layer[begin * k] + n * k);
      }
      const std::vector<float>& weights = whole.balance.token_weights;
      if (!weights.empty()) {
        context.balance = {.token_weights = {&weights[begin], &weights[begin] + n},
                           .expert_weights = whole.balance.expert_weights};
      }
      context.loads = whole.loads;
    }
    parts.starts.push_back(t);
    return parts;
  }

  std::vector<at::Tensor> RunInParts(size_t i, const at::Tensor& x,
                                     const std::shared_ptr<const Parts>& parts) const {
    train_ops::LayerParts layer{
        .starts = parts->starts, .owners = parts->owners, .share = parts->share};
    layer.keys = [this, parts, i](const at::Tensor& rows, size_t p) {
      auto [k, v] =
          KeysAndValues(layers_[i], Norm(rows, layers_[i].input_norm), parts->contexts[p]);
      if (narrow_) k = train_ops::RoundToFp16(k), v = train_ops::RoundToFp16(v);
      return std::pair(k, v);
    };
    layer.output = [this, parts, i](const at::Tensor& rows, size_t p,
                                    const std::shared_ptr<train_ops::CarriedKeys>& carried) {
      const Context& context = parts->contexts[p];
      const at::Tensor q = Queries(layers_[i], Norm(rows, layers_[i].input_norm), context);
      const at::Tensor attended = train_ops::AttendToCarried(
          q, carried, parts->starts[p], config_.head_dim, config_.sliding_window, narrow_);
      return Finish(i, rows, attended, context);
    };
    return train_ops::ComputeInParts(x, std::move(layer));
  }

  // The products of attention's input have weights in bf16, if at all; their input stays in fp32.
  train_ops::Operands attention_operands() const {
    return narrow_ ? train_ops::Operands::kBf16Weight : train_ops::Operands::kF32;
  }

  // Returns the queries [T, heads * D] of the layer's input, after its norm.
  at::Tensor Queries(const Layer& layer, const at::Tensor& normed, const Context& context) const {
    at::Tensor q = train_ops::Linear(normed, layer.q, attention_operands());
    if (config_.qkv_bias) q = at::add(q, RoundIfNarrow(layer.q_bias));
    if (config_.qk_norm) q = Norm(q, layer.q_norm);
    return train_ops::Rope(q, context.cos, context.sin);
  }

  // Returns the keys and values [T, kv_heads * D] in the same way.
  std::pair<at::Tensor, at::Tensor> KeysAndValues(const Layer& layer, const at::Tensor& normed,
                                                  const Context& context) const {
    at::Tensor k = train_ops::Linear(normed, layer.k, attention_operands()),
               v = train_ops::Linear(normed, layer.v, attention_operands());
    if (config_.qkv_bias)
      k = at::add(k, RoundIfNarrow(layer.k_bias)), v = at::add(v, RoundIfNarrow(layer.v_bias));
    if (config_.qk_norm) k = Norm(k, layer.k_norm);
    return {train_ops::Rope(k, context.cos, context.sin), v};
  }

  // Returns what Run() returns, given the input x and the result of attention.
  std::vector<at::Tensor> Finish(size_t i, at::Tensor x, const at::Tensor& attended,
                                 const Context& context) const {
    const Layer& layer = layers_[i];
    x = at::add(x, Linear(attended, layer.o));
    if (config_.o_bias) x = at::add(x, RoundIfNarrow(layer.o_bias));
    const at::Tensor normed = Norm(x, layer.post_norm);
    train_ops::Mixture mlp;
    if (config_.num_experts > 0) mlp = Mix(i, normed, context);
    else mlp.out = Mlp(layer, normed);
    x = at::add(x, mlp.out);
    if (config_.mlp_bias) x = at::add(x, RoundIfNarrow(layer.down_bias));
    if (!mlp.balance.defined()) return {x};
    return {x, mlp.balance};
  }

  at::Tensor Mlp(const Layer& layer, const at::Tensor& x) const {
    at::Tensor gate = Linear(x, layer.gate), up = Linear(x, layer.up);
    if (config_.mlp_bias)
      gate = at::add(gate, RoundIfNarrow(layer.gate_bias)),
      up = at::add(up, RoundIfNarrow(layer.up_bias));
    return Linear(train_ops::SwiGlu(gate, up), layer.down);
  }

  // Runs the experts of layer i.
  train_ops::Mixture Mix(size_t i, const at::Tensor& x, const Context& context) const {
    const std::vector<uint16_t>& recorded = context.experts[i];
    const size_t experts = static_cast<size_t>(config_.num_experts);
    train_ops::LayerBalance balance{.token_weights = context.balance.token_weights};
    if (!context.balance.expert_weights.empty()) {
      balance.expert_weights =
          absl::MakeConstSpan(context.balance.expert_weights).subspan(i * experts, experts);
    }
    if (!context.loads.empty()) balance.loads = context.loads.subspan(i * experts, experts);
    return train_ops::MixExperts(x, layers_[i].experts, config_.experts_per_token,
                                 config_.norm_topk_prob, narrow_,
                                 recorded.empty() ? nullptr : recorded.data(), balance);
  }

  // Returns the part of batch.routing for one layer, [T, k]; empty if there is no routing.
  std::vector<uint16_t> RecordedExperts(const PackedBatch& batch, size_t layer) const {
    std::vector<uint16_t> out;
    const size_t k = static_cast<size_t>(config_.experts_per_token), stride = k * layers_.size();
    for (size_t from = layer * k; from < batch.routing.size(); from += stride)
      out.insert(out.end(), &batch.routing[from], &batch.routing[from] + k);
    return out;
  }

  // Returns a parameter as the decode execution holds it: rounded to bf16 if narrow_.
  at::Tensor RoundIfNarrow(const at::Tensor& parameter) const {
    return narrow_ ? train_ops::RoundToBf16(parameter) : parameter;
  }
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const {
    return train_ops::RmsNorm(x, RoundIfNarrow(weight), config_.rms_norm_eps);
  }
  at::Tensor Linear(const at::Tensor& x, const at::Tensor& w) const {
    return train_ops::Linear(x, w, operands());
  }
  train_ops::Operands operands() const {
    return narrow_ ? train_ops::Operands::kBf16 : train_ops::Operands::kF32;
  }

  const ModelConfig config_;
  const bool narrow_;  // The forward pass runs on parameters rounded to bf16.
  const ActivationMemory activations_;
  const std::vector<float> frequencies_;  // [D / 2]
  std::vector<Parameter> parameters_;     // The tensors below refer to these.
  at::Tensor embed_, norm_, head_;
  std::vector<Layer> layers_;
  UnitMemory* memory_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainModel>> TrainModel::Create(const ModelConfig& config,
                                                               DType dtype,
                                                               const ActivationMemory& memory,
                                                               bool lent) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return absl::UnimplementedError(
        absl::StrCat("training in ", DTypeName(dtype), " is not built; use F32 or BF16"));
  }
  return CatchExceptions("create model", [&]() -> std::unique_ptr<TrainModel> {
    return std::make_unique<Trainable>(config, dtype, memory, lent);
  });
}

void LendMemory(const at::Tensor& parameter, float* data) {
  parameter.storage().set_data_ptr_noswap(at::DataPtr(data, at::kCPU));
}

absl::Status Backward(const at::Tensor& loss, bool keep_graph) {
  return CatchExceptions("backward",
                         [&] {
                           torch::autograd::backward({loss}, {}, keep_graph);
                           return true;
                         })
      .status();
}

}  // namespace sluice
