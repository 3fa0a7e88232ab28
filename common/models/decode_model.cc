#include "common/models/decode_model.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/models/worker_pool.h"
#include "kernels/decoder/op.h"

// M rows of a tile, H hidden, Q query and KV key/value widths (heads x D), D head size, F feed-forward width, V vocabulary.
namespace sluice {
namespace {

// Rows that go through all layers together: enough to use a weight often, few enough for their activations to stay in L2.
constexpr int64_t kTileRows = 48;

struct LayerWeights {
  std::vector<float> input_norm, post_norm;  // [H]
  std::vector<float> q_norm, k_norm;         // [D]; empty without qk_norm.
  std::vector<float> qkv;                    // Packed [Q + 2 KV, H].
  std::vector<float> o;                      // Packed [H, Q].
  std::vector<float> gate_up;                // Packed [2 F, H].
  std::vector<float> down;                   // Packed [H, F].
};

// What one thread computes with.
struct Scratch {
  std::vector<float> x, normed;  // [M, H]
  std::vector<float> qkv;        // [M, Q + 2 KV]
  std::vector<float> mixed;      // [M, Q]
  std::vector<float> gate_up;    // [M, 2 F]
  std::vector<int32_t> rows;     // Its rows of the step.
};

class Decoder final : public DecodeModel {
 public:
  Decoder(const ModelConfig& config, const TensorSet* weights, const Options& options)
      : config_(config),
        weights_(*weights),
        options_(options),
        hidden_(config.hidden_size),
        q_width_(config.num_heads * config.head_dim),
        kv_width_(config.num_kv_heads * config.head_dim),
        ffn_(config.intermediate_size),
        head_floats_(KvHead::BlockFloats(config.head_dim)),
        block_floats_(config.num_kv_heads * head_floats_),
        ops_(BestDecoderOps()),
        layers_(config.num_layers),
        scratch_(options.threads),
        pool_(options.threads - 1) {}

  absl::Status Allocate() {
    cache_.reset(static_cast<float*>(::operator new[](CacheBytes(), std::align_val_t{64}, std::nothrow)));
    if (cache_ == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a KV cache of ", CacheBytes(), " bytes (", options_.blocks, " blocks of ",
                                                       kBlockTokens, " tokens); ask for fewer"));
    }
    const int64_t q = q_width_ + 2 * kv_width_;
    for (LayerWeights& layer : layers_) {
      layer.input_norm.resize(hidden_), layer.post_norm.resize(hidden_);
      if (config_.qk_norm) layer.q_norm.resize(config_.head_dim), layer.k_norm.resize(config_.head_dim);
      layer.qkv.resize(PackedFloats(q, hidden_)), layer.o.resize(PackedFloats(hidden_, q_width_));
      layer.gate_up.resize(PackedFloats(2 * ffn_, hidden_)), layer.down.resize(PackedFloats(hidden_, ffn_));
    }
    final_norm_.resize(hidden_), head_.resize(PackedFloats(config_.vocab_size, hidden_));
    for (Scratch& s : scratch_) {
      s.x.resize(kTileRows * hidden_), s.normed.resize(kTileRows * hidden_), s.qkv.resize(kTileRows * q);
      s.mixed.resize(kTileRows * q_width_), s.gate_up.resize(kTileRows * 2 * ffn_);
    }
    const std::vector<float> frequencies = config_.rope.Frequencies(config_.head_dim);
    for (int64_t p = 0; p < options_.max_context; ++p) {
      for (const float f : frequencies) {  // The angle is an fp32 product, as in transformers.
        cos_.push_back(std::cos(static_cast<float>(p) * f));
        sin_.push_back(std::sin(static_cast<float>(p) * f));
      }
    }
    OnWeightsChanged();
    return absl::OkStatus();
  }

  void OnWeightsChanged() override {
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const std::string p = absl::StrCat("model.layers.", i, ".");
      LayerWeights& layer = layers_[i];
      Vector(p + "input_layernorm.weight", &layer.input_norm);
      Vector(p + "post_attention_layernorm.weight", &layer.post_norm);
      if (config_.qk_norm) Vector(p + "self_attn.q_norm.weight", &layer.q_norm);
      if (config_.qk_norm) Vector(p + "self_attn.k_norm.weight", &layer.k_norm);
      Matrix(p + "self_attn.q_proj.weight", 0, &layer.qkv);
      Matrix(p + "self_attn.k_proj.weight", q_width_, &layer.qkv);
      Matrix(p + "self_attn.v_proj.weight", q_width_ + kv_width_, &layer.qkv);
      Matrix(p + "self_attn.o_proj.weight", 0, &layer.o);
      Matrix(p + "mlp.gate_proj.weight", 0, &layer.gate_up);
      Matrix(p + "mlp.up_proj.weight", ffn_, &layer.gate_up);
      Matrix(p + "mlp.down_proj.weight", 0, &layer.down);
    }
    Vector("model.norm.weight", &final_norm_);
    Matrix(config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", 0, &head_);
  }

  void Step(absl::Span<const Row> rows, absl::Span<const absl::Span<const int32_t>> tables, float* logits) override {
    Check(rows, tables);
    tables_ = tables;
    logits_row_.resize(rows.size());
    int64_t wanted = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      logits_row_[i] = wanted;
      if (rows[i].want_logits) ++wanted;
    }
    Divide(rows);
    pool_.Run([&](int thread) {
      const std::vector<int32_t>& mine = scratch_[thread].rows;
      for (size_t i = 0; i < mine.size(); i += kTileRows) {
        Tile(rows, absl::MakeConstSpan(mine).subspan(i, kTileRows), logits, &scratch_[thread]);
      }
    });
  }

  void CopyBlock(int from, int to) override {
    SLUICE_CHECK(from >= 0 && from < options_.blocks && to >= 0 && to < options_.blocks);
    if (from == to) return;
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      std::copy_n(Block(layer, from), block_floats_, Block(layer, to));
    }
  }

  const ModelConfig& config() const override { return config_; }
  const Options& options() const override { return options_; }
  int64_t memory_bytes() const override {
    int64_t packed = static_cast<int64_t>(head_.size());
    for (const LayerWeights& layer : layers_) {
      packed += static_cast<int64_t>(layer.qkv.size() + layer.o.size() + layer.gate_up.size() + layer.down.size());
    }
    return CacheBytes() + packed * static_cast<int64_t>(sizeof(float));
  }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };

  int64_t CacheBytes() const { return config_.num_layers * options_.blocks * block_floats_ * static_cast<int64_t>(sizeof(float)); }

  float* Block(int64_t layer, int64_t block) { return cache_.get() + (layer * options_.blocks + block) * block_floats_; }
  KvHead Cache(int64_t layer, int64_t head) { return {Block(layer, 0) + head * head_floats_, block_floats_}; }

  void Check(absl::Span<const Row> rows, absl::Span<const absl::Span<const int32_t>> tables) const {
    for (const Row& row : rows) {
      SLUICE_CHECK(row.position >= 0 && row.position < options_.max_context && row.token >= 0 && row.token < config_.vocab_size);
      SLUICE_CHECK(row.table >= 0 && row.table < static_cast<int64_t>(tables.size()) &&
                   row.position / kBlockTokens < static_cast<int64_t>(tables[row.table].size()));
    }
    for (const absl::Span<const int32_t> table : tables) {
      for (const int32_t block : table) SLUICE_CHECK(block >= 0 && block < options_.blocks);
    }
  }

  // The fp32 elements of n elements of tensor i from `first`.
  void Widen(int64_t i, int64_t first, int64_t n, float* to) const {
    const DType dtype = weights_.spec(i).dtype;
    const absl::Status ok = ConvertElements(dtype, weights_.data(i) + first * DTypeBytes(dtype), DType::kF32, to, n);
    SLUICE_CHECK(ok.ok());  // Create() saw the dtype.
  }

  void Vector(const std::string& name, std::vector<float>* to) const { Widen(weights_.Find(name), 0, static_cast<int64_t>(to->size()), to->data()); }

  // Packs a weight to the outputs from `first` on.
  void Matrix(const std::string& name, int64_t first, std::vector<float>* to) {
    const int64_t i = weights_.Find(name), rows = weights_.spec(i).shape[0], k = weights_.spec(i).shape[1];
    row_.resize(k);
    for (int64_t r = 0; r < rows; ++r) {
      Widen(i, r * k, k, row_.data());
      PackRows(row_.data(), 1, k, first + r, to->data());
    }
  }

  // Gives each thread about the same number of rows, neighbours together, all rows of a sequence to one: a row attends to what
  // its earlier rows write, so that no thread waits for another.
  void Divide(absl::Span<const Row> rows) {
    for (Scratch& s : scratch_) s.rows.clear();
    table_thread_.assign(tables_.size(), -1);
    const size_t share = (rows.size() + scratch_.size() - 1) / scratch_.size();
    size_t current = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      int& thread = table_thread_[rows[i].table];
      if (thread < 0) {
        if (current + 1 < scratch_.size() && scratch_[current].rows.size() >= share) ++current;
        thread = static_cast<int>(current);
      }
      scratch_[thread].rows.push_back(static_cast<int32_t>(i));
    }
  }

  // Takes a tile of rows through all layers.
  void Tile(absl::Span<const Row> rows, absl::Span<const int32_t> tile, float* logits, Scratch* s) {
    const int64_t m = static_cast<int64_t>(tile.size());
    const int64_t embed = embed_index_;
    for (int64_t r = 0; r < m; ++r) Widen(embed, rows[tile[r]].token * hidden_, hidden_, &s->x[r * hidden_]);
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      Attention(rows, tile, i, s);
      FeedForward(layers_[i], m, s);
    }
    Head(rows, tile, logits, s);
  }

  void Norm(const std::vector<float>& weight, int64_t m, Scratch* s) const {
    for (int64_t r = 0; r < m; ++r) {
      ops_.rms_norm(&s->x[r * hidden_], weight.data(), hidden_, static_cast<float>(config_.rms_norm_eps), &s->normed[r * hidden_]);
    }
  }

  // x += o(attention(norm(x))).
  void Attention(absl::Span<const Row> rows, absl::Span<const int32_t> tile, int64_t index, Scratch* s) {
    const LayerWeights& layer = layers_[index];
    const int64_t m = static_cast<int64_t>(tile.size()), d = config_.head_dim, width = q_width_ + 2 * kv_width_;
    Norm(layer.input_norm, m, s);
    ops_.gemm(s->normed.data(), hidden_, layer.qkv.data(), m, width, hidden_, s->qkv.data(), width, false);
    for (int64_t r = 0; r < m; ++r) {
      const Row& row = rows[tile[r]];
      float *q = &s->qkv[r * width], *k = q + q_width_, *v = k + kv_width_;
      for (int64_t h = 0; h < config_.num_heads; ++h) Rotate(layer.q_norm, row.position, q + h * d);
      for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
        Rotate(layer.k_norm, row.position, k + h * d);
        const int32_t block = tables_[row.table][row.position / kBlockTokens];
        StoreKeyValue(Cache(index, h), block, row.position % kBlockTokens, d, k + h * d, v + h * d);
      }
    }
    const int64_t group = config_.num_heads / config_.num_kv_heads;
    for (int64_t r = 0; r < m; ++r) {
      const Row& row = rows[tile[r]];
      for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
        ops_.attend(&s->qkv[r * width + h * group * d], Cache(index, h), tables_[row.table].data(), row.position + 1, group, d,
                    &s->mixed[r * q_width_ + h * group * d]);
      }
    }
    ops_.gemm(s->mixed.data(), q_width_, layer.o.data(), m, hidden_, q_width_, s->x.data(), hidden_, true);
  }

  // Norm of one head, where the model has one, then its rotation: (a, b) of the two halves -> (a cos - b sin, b cos + a sin).
  void Rotate(const std::vector<float>& norm, int64_t position, float* head) const {
    const int64_t half = config_.head_dim / 2;
    if (!norm.empty()) ops_.rms_norm(head, norm.data(), config_.head_dim, static_cast<float>(config_.rms_norm_eps), head);
    const float *cos = &cos_[position * half], *sin = &sin_[position * half];
    for (int64_t i = 0; i < half; ++i) {
      const float a = head[i], b = head[i + half];
      head[i] = a * cos[i] - b * sin[i];
      head[i + half] = b * cos[i] + a * sin[i];
    }
  }

  // x += down(silu(gate(norm(x))) * up(norm(x))).
  void FeedForward(const LayerWeights& layer, int64_t m, Scratch* s) const {
    Norm(layer.post_norm, m, s);
    ops_.gemm(s->normed.data(), hidden_, layer.gate_up.data(), m, 2 * ffn_, hidden_, s->gate_up.data(), 2 * ffn_, false);
    for (int64_t r = 0; r < m; ++r) {
      float* gate = &s->gate_up[r * 2 * ffn_];
      ops_.swiglu(gate, gate + ffn_, ffn_, gate);
    }
    ops_.gemm(s->gate_up.data(), 2 * ffn_, layer.down.data(), m, hidden_, ffn_, s->x.data(), hidden_, true);
  }

  // Logits of the rows that want them, one product per run of neighbours in the output.
  void Head(absl::Span<const Row> rows, absl::Span<const int32_t> tile, float* logits, Scratch* s) const {
    const int64_t vocab = config_.vocab_size;
    int64_t n = 0, first = 0;
    const auto flush = [&] {
      if (n > 0) ops_.gemm(s->normed.data(), hidden_, head_.data(), n, vocab, hidden_, logits + first * vocab, vocab, false);
      n = 0;
    };
    for (size_t r = 0; r < tile.size(); ++r) {
      if (!rows[tile[r]].want_logits) continue;
      const int64_t to = logits_row_[tile[r]];
      if (n > 0 && to != first + n) flush();
      if (n == 0) first = to;
      ops_.rms_norm(&s->x[r * hidden_], final_norm_.data(), hidden_, static_cast<float>(config_.rms_norm_eps), &s->normed[n++ * hidden_]);
    }
    flush();
  }

  const ModelConfig config_;
  const TensorSet& weights_;
  const Options options_;
  const int64_t hidden_, q_width_, kv_width_, ffn_;
  const int64_t head_floats_, block_floats_;  // Of a KV block of one kv head, and of all.
  const DecoderOps& ops_;
  const int64_t embed_index_ = weights_.Find("model.embed_tokens.weight");

  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_, head_;  // [H]; packed [V, H].
  std::vector<float> cos_, sin_;          // [max_context, D / 2]
  std::vector<float> row_;                // One row of a weight, while packing.
  std::unique_ptr<float[], Free> cache_;

  std::vector<Scratch> scratch_;       // By thread.
  absl::Span<const absl::Span<const int32_t>> tables_;  // Of this step.
  std::vector<int> table_thread_;      // By table of this step; -1: none yet.
  std::vector<int64_t> logits_row_;    // By row of this step: where its logits go.
  WorkerPool pool_;                    // Last: its threads end before what they use.
};

absl::Status CheckWeights(const ModelConfig& config, const TensorSet& weights) {
  const std::vector<TensorSpec> needed = config.Parameters(DType::kF32);
  for (const TensorSpec& spec : needed) {
    const int64_t i = weights.Find(spec.name);
    if (i < 0) return absl::InvalidArgumentError(absl::StrCat("the weights lack tensor ", spec.name));
    const TensorSpec& held = weights.spec(i);
    const bool float_type = held.dtype == DType::kF32 || held.dtype == DType::kBF16 || held.dtype == DType::kF16;
    if (!float_type || held.shape != spec.shape) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name, " is ", ShapeText(held.dtype, held.shape), ", needed is ",
                                                     ShapeText(spec.dtype, spec.shape), " (or BF16, F16)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeModel>> DecodeModel::Create(const ModelConfig& config, const TensorSet* weights, const Options& options) {
  SLUICE_RETURN_IF_ERROR(CheckWeights(config, *weights));
  if (options.blocks < 1 || options.threads < 1 || options.threads > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("blocks ", options.blocks, " and threads ", options.threads, " must be at least 1, threads at most 1024"));
  }
  if (options.max_context < 1 || options.max_context > config.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("max_context ", options.max_context, " is not in [1, ", config.max_context,
                                                   "], the model's max_position_embeddings"));
  }
  auto model = std::make_unique<Decoder>(config, weights, options);
  SLUICE_RETURN_IF_ERROR(model->Allocate());
  return model;
}

}  // namespace sluice
