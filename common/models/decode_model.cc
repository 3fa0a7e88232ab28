#include "common/models/decode_model.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/models/adapter.h"
#include "common/models/crew.h"
#include "common/models/divide.h"
#include "common/models/kv_cache.h"
#include "common/models/moe_decode.h"
#include "common/models/packed_weights.h"
#include "common/models/rope_angles.h"
#include "common/models/team.h"
#include "kernels/decoder/op.h"

// M rows of a tile, H hidden, Q query and KV key/value widths (heads x D), D head size, F
// feed-forward width, V vocabulary.
namespace sluice {
namespace {

constexpr int kMaxThreads = 1024;
// That a thread takes at a time to draw from: some ten microseconds.
constexpr int64_t kDrawLogits = 1 << 14;

// What one tile is computed in. T is float, or uint16_t for bf16: what products take in.
template <typename T>
struct Scratch {
  std::vector<float> x;      // [M, H]
  std::vector<T> normed;     // [M, H]
  std::vector<float> wide;   // [M, H]: for q, k and v, not rounded; unused in fp32.
  std::vector<float> qkv;    // [M, Q + 2 KV]
  std::vector<float> mixed;  // [M, Q]
  std::vector<T> narrow;     // [M, Q]: `mixed` in bf16; unused in fp32.
  std::vector<T> act;        // [M, F]
  // [M, 2 F rounded up to panels]: gate and up in panels that alternate, where they have a bias or
  // an adapter.
  std::vector<float> gated;
  typename MoeMlp<T>::Scratch moe;
  AttentionPlan attention;
  std::vector<int32_t> wanted;  // Rows of the tile whose logits are wanted.
};

template <typename T>
class Decoder final : public DecodeModel {
 public:
  Decoder(const ModelConfig& config, const TensorSet* weights, const Options& options)
      : config_(config),
        weights_(weights),
        options_(options),
        hidden_(config.hidden_size),
        q_width_(config.num_heads * config.head_dim),
        kv_width_(config.num_kv_heads * config.head_dim),
        qkv_width_(q_width_ + 2 * kv_width_),
        ffn_(config.intermediate_size),
        angles_(config.rope, config.head_dim, options.max_context),
        cache_(config),
        ops_(BestDecoderOps()),
        moe_(config),
        division_(config),
        team_(options.threads, "sluice-decode") {}

  absl::Status Allocate() {
    SLUICE_RETURN_IF_ERROR(cache_.Allocate(options_.blocks));
    SLUICE_RETURN_IF_ERROR(packed_.Create(config_, weights_));
    division_.Configure(team_.size(), packed_.bytes());
    AllocateScratch();
    packed_.Pack(weights_, &team_);
    return absl::OkStatus();
  }

  void SetThreads(int threads) override {
    SLUICE_CHECK(threads >= 1 && threads <= kMaxThreads);
    if (threads == team_.size()) return;
    team_.Resize(threads);
    division_.Configure(threads, packed_.bytes());
    AllocateScratch();
  }

  void SetWeights(const TensorSet* weights) override {
    SLUICE_CHECK(weights->layout_id() == weights_->layout_id());
    weights_ = weights;
    packed_.Pack(weights_, &team_);
#ifdef SLUICE_FAILPOINTS
    if (!HitFailpoint("rollout.activate.bitflip").ok()) packed_.FlipBit();
#endif
  }
  std::vector<Fingerprint> Fingerprints() override { return packed_.Fingerprints(&team_); }

  void Step(absl::Span<const Row> rows, absl::Span<const absl::Span<const int32_t>> tables,
            float* logits) override {
    Check(rows, tables);
    tables_ = tables;
    logits_row_.resize(rows.size());
    adapted_ = false;
    int64_t wanted = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      logits_row_[i] = wanted;
      if (rows[i].want_logits) ++wanted;
      if (rows[i].adapter != nullptr) adapted_ = true;
    }
    if (adapted_) {
      for (Scratch<T>& s : scratch_)
        s.gated.resize(s.x.size() / static_cast<size_t>(hidden_) *
                       static_cast<size_t>(2 * RoundUpToLanes(ffn_)));
    }
    routing_.resize(wanted * config_.num_layers * config_.experts_per_token);
    const size_t tile_rows = static_cast<size_t>(division_.tile_rows());
    if (division_.Divide(rows, tables.size()) == StepDivision::Way::kApart) {
      return team_.Run([&](int thread) {
        const absl::Span<const int32_t> mine = division_.rows_of(thread);
        for (size_t i = 0; i < mine.size(); i += tile_rows) {
          const absl::Span<const int32_t> tile = mine.subspan(i, tile_rows);
          Plan(rows, tile, &scratch_[thread]);
          Tile(Crew::OneThread(), rows, tile, logits, &scratch_[thread]);
        }
      });
    }
    const Crew crew = Crew::AllOf(&team_);
    for (size_t i = 0; i < rows.size(); i += tile_rows) {
      const absl::Span<const int32_t> tile = division_.rows_of(0).subspan(i, tile_rows);
      Plan(rows, tile, &scratch_[0]);
      team_.Run([&](int) { Tile(crew, rows, tile, logits, &scratch_[0]); });
    }
  }

  void Draw(absl::Span<const SampleRow> rows, SampleDraw* draws) override {
    const int64_t vocab = config_.vocab_size, n = static_cast<int64_t>(rows.size());
    const int64_t unit = std::max<int64_t>(1, kDrawLogits / vocab), units = (n + unit - 1) / unit;
    if (units < 2) return SampleCpu(rows.data(), n, vocab, draws);
    team_.Run([&](int) {
      team_.Share(units, [&](int64_t i) {
        SampleCpu(&rows[i * unit], std::min(unit, n - i * unit), vocab, draws + i * unit);
      });
    });
  }

  void CopyBlock(int from, int to) override { cache_.CopyBlock(from, to); }

  absl::Span<const uint16_t> routing() const override { return routing_; }
  const ModelConfig& config() const override { return config_; }
  const Options& options() const override { return options_; }
  int64_t memory_bytes() const override { return cache_.bytes() + packed_.bytes(); }

 private:
  // For each thread of the team that has none yet.
  void AllocateScratch() {
    constexpr int64_t m = StepDivision::kMaxTileRows;
    for (int i = static_cast<int>(scratch_.size()); i < team_.size(); ++i) {
      Scratch<T>& s = scratch_.emplace_back();
      s.x.resize(m * hidden_), s.normed.resize(m * RoundUpToPairs(hidden_)),
          s.qkv.resize(m * qkv_width_);
      s.mixed.resize(m * q_width_), s.act.resize(m * RoundUpToPairs(ffn_));
      if (config_.mlp_bias) s.gated.resize(m * 2 * RoundUpToLanes(ffn_));
      moe_.Allocate(m, &s.moe);
      if (!std::is_same_v<T, float>)
        s.narrow.resize(m * q_width_), s.wide.resize(m * RoundUpToPairs(hidden_));
    }
  }

  void Check(absl::Span<const Row> rows, absl::Span<const absl::Span<const int32_t>> tables) const {
    for (const Row& row : rows) {
      SLUICE_CHECK(row.position >= 0 && row.position < options_.max_context && row.token >= 0 &&
                   row.token < config_.vocab_size);
      SLUICE_CHECK(row.adapter == nullptr || row.adapter->Fits(config_));
      SLUICE_CHECK(row.table >= 0 && row.table < static_cast<int64_t>(tables.size()) &&
                   row.position / kBlockTokens < static_cast<int64_t>(tables[row.table].size()));
    }
    for (const absl::Span<const int32_t> table : tables) {
      for (const int32_t block : table) SLUICE_CHECK(block >= 0 && block < options_.blocks);
    }
  }

  void Plan(absl::Span<const Row> rows, absl::Span<const int32_t> tile, Scratch<T>* s) const {
    s->attention.Make(rows, tile, tables_, config_.num_kv_heads);
    s->wanted.clear();
    for (size_t r = 0; r < tile.size(); ++r) {
      if (rows[tile[r]].want_logits) s->wanted.push_back(static_cast<int32_t>(r));
    }
  }

  // Takes a tile of rows through all layers.
  void Tile(const Crew& crew, absl::Span<const Row> rows, absl::Span<const int32_t> tile,
            float* logits, Scratch<T>* s) {
    const int64_t m = static_cast<int64_t>(tile.size());
    crew.Each(m, [&](int64_t r) {
      Embed(rows[tile[r]].token, &s->x[r * hidden_]);
      Norm(&s->x[r * hidden_], packed_.layers()[0].input_norm, Wide(s, r));
    });
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const auto& layer = packed_.layers()[i];
      Product(crew, Wide(s, 0), RoundUpToPairs(hidden_), layer.qkv, m, qkv_width_, hidden_,
              s->qkv.data(), false);
      Adapt(crew, rows, tile, [&](const Adapter& adapter, int64_t r) {
        adapter.Add(i, Adapter::kQ, Wide(s, r), &s->qkv[r * qkv_width_]);
        adapter.Add(i, Adapter::kK, Wide(s, r), &s->qkv[r * qkv_width_ + q_width_]);
        adapter.Add(i, Adapter::kV, Wide(s, r), &s->qkv[r * qkv_width_ + q_width_ + kv_width_]);
      });
      crew.Each(m, [&](int64_t r) { Prepare(layer, i, rows[tile[r]], &s->qkv[r * qkv_width_]); });
      crew.Each(static_cast<int64_t>(s->attention.units().size()),
                [&](int64_t unit) { Attend(i, s->attention.units()[unit], rows, tile, s); });
      Product(crew, Mixed(s), q_width_, layer.o, m, hidden_, q_width_, s->x.data(), true);
      Adapt(crew, rows, tile, [&](const Adapter& adapter, int64_t r) {
        adapter.Add(i, Adapter::kO, &s->mixed[r * q_width_], &s->x[r * hidden_]);
      });
      AddBias(crew, layer.o_bias, m, s);
      if (config_.num_experts > 0) {
        crew.Each(m, [&](int64_t r) { Norm(&s->x[r * hidden_], layer.post_norm, Wide(s, r)); });
        moe_.AddTo(crew, layer, Wide(s, 0), m, s->x.data(), &s->moe);
        crew.Each(static_cast<int64_t>(s->wanted.size()),
                  [&](int64_t j) { Record(i, s->wanted[j], tile, *s); });
      } else {
        crew.Each(m, [&](int64_t r) { Norm(&s->x[r * hidden_], layer.post_norm, Normed(s, r)); });
        if (config_.mlp_bias || adapted_) GateUpByRow(crew, rows, tile, i, layer, s);
        else GateUp(crew, layer.gate_up, m, s);
        Product(crew, s->act.data(), RoundUpToPairs(ffn_), layer.down, m, hidden_, ffn_,
                s->x.data(), true);
        Adapt(crew, rows, tile, [&](const Adapter& adapter, int64_t r) {
          adapter.Add(i, Adapter::kDown, &s->act[r * RoundUpToPairs(ffn_)], &s->x[r * hidden_]);
        });
        AddBias(crew, layer.down_bias, m, s);
      }
      if (i + 1 < config_.num_layers) {
        crew.Each(m, [&](int64_t r) {
          Norm(&s->x[r * hidden_], packed_.layers()[i + 1].input_norm, Wide(s, r));
        });
      }
    }
    Head(crew, tile, logits, s);
  }

  void Embed(int64_t token, float* x) const {
    const DType dtype = weights_->spec(embed_index_).dtype;
    const std::byte* from =
        weights_->data(embed_index_) + token * hidden_ * static_cast<int64_t>(DTypeBytes(dtype));
    // Create() saw the dtype.
    SLUICE_CHECK(ConvertElements(dtype, from, DType::kF32, x, hidden_).ok());
  }

  T* Normed(Scratch<T>* s, int64_t row) const { return &s->normed[row * RoundUpToPairs(hidden_)]; }
  float* Wide(Scratch<T>* s, int64_t row) const {
    if constexpr (std::is_same_v<T, float>) return Normed(s, row);
    else return &s->wide[row * RoundUpToPairs(hidden_)];
  }
  const T* Mixed(const Scratch<T>* s) const {
    if constexpr (std::is_same_v<T, float>) return s->mixed.data();
    else return s->narrow.data();
  }

  // The rows of `normed` in fp32 lie as far apart as in bf16, where an odd width needs a zero
  // behind.
  void Norm(const float* x, const std::vector<float>& weight, float* to) const {
    ops_.rms_norm(x, weight.data(), hidden_, static_cast<float>(config_.rms_norm_eps), to);
  }
  void Norm(const float* x, const std::vector<float>& weight, uint16_t* to) const {
    thread_local std::vector<float> wide;
    wide.resize(hidden_);
    Norm(x, weight, wide.data());
    ops_.to_bf16(wide.data(), hidden_, to);
  }

  // y [m, n] (rows side by side) = x [m, k] (row stride ldx) times w^T, plus y if `add`. X is T or
  // float.
  template <typename X>
  void Product(const Crew& crew, const X* x, int64_t ldx, const T* w, int64_t m, int64_t n,
               int64_t k, float* y, bool add) const {
    const int64_t unit = OutputsPerUnit(crew.size(), n),
                  depth = std::is_same_v<T, float> ? k : RoundUpToPairs(k);
    crew.Each((n + unit - 1) / unit, [&](int64_t i) {
      const int64_t first = i * unit, count = std::min(n - first, unit);
      if constexpr (std::is_same_v<T, float>)
        ops_.gemm(x, ldx, w + first * depth, m, count, k, y + first, n, add);
      else if constexpr (std::is_same_v<X, float>)
        ops_.gemm_mixed(x, ldx, w + first * depth, m, count, k, y + first, n, add);
      else ops_.gemm_bf16(x, ldx, w + first * depth, m, count, k, y + first, n, add);
    });
  }

  // act = silu(gate(normed)) * up(normed).
  void GateUp(const Crew& crew, const T* w, int64_t m, Scratch<T>* s) const {
    const int64_t unit = OutputsPerUnit(crew.size(), ffn_), ld = RoundUpToPairs(hidden_),
                  to = RoundUpToPairs(ffn_);
    const int64_t depth = std::is_same_v<T, float> ? hidden_ : RoundUpToPairs(hidden_);
    crew.Each((ffn_ + unit - 1) / unit, [&](int64_t i) {
      const int64_t first = i * unit, count = std::min(ffn_ - first, unit);
      if constexpr (std::is_same_v<T, float>)
        ops_.gate_up(s->normed.data(), ld, w + 2 * first * depth, m, count, hidden_, &s->act[first],
                     to);
      else
        ops_.gate_up_bf16(s->normed.data(), ld, w + 2 * first * depth, m, count, hidden_,
                          &s->act[first], to);
    });
  }

  // Calls add(adapter, r) for each row of the tile that has one.
  template <typename Add>
  void Adapt(const Crew& crew, absl::Span<const Row> rows, absl::Span<const int32_t> tile,
             const Add& add) const {
    if (!adapted_) return;
    crew.Each(static_cast<int64_t>(tile.size()), [&](int64_t r) {
      if (const Adapter* adapter = rows[tile[r]].adapter) add(*adapter, r);
    });
  }

  // As GateUp, in the same bits, where biases or an adapter come between the products and their
  // SwiGLU.
  void GateUpByRow(const Crew& crew, absl::Span<const Row> rows, absl::Span<const int32_t> tile,
                   int64_t index, const typename PackedWeights<T>::Layer& layer,
                   Scratch<T>* s) const {
    const int64_t m = static_cast<int64_t>(tile.size()), width = 2 * RoundUpToLanes(ffn_);
    Product(crew, s->normed.data(), RoundUpToPairs(hidden_), layer.gate_up, m, width, hidden_,
            s->gated.data(), false);
    crew.Each(m, [&](int64_t r) {
      // Gate [F], up [F]; in `gated` they lie in turns, panel by panel.
      thread_local std::vector<float> sides;
      sides.resize(2 * ffn_);
      float *gate = sides.data(), *up = gate + ffn_;
      for (int64_t f = 0; f < ffn_; ++f) {
        const float* panels =
            &s->gated[r * width + f / kDecoderLanes * 2 * kDecoderLanes + f % kDecoderLanes];
        gate[f] = panels[0], up[f] = panels[kDecoderLanes];
        if (config_.mlp_bias) gate[f] += layer.gate_bias[f], up[f] += layer.up_bias[f];
      }
      if (const Adapter* adapter = rows[tile[r]].adapter) {
        adapter->Add(index, Adapter::kGate, Normed(s, r), gate);
        adapter->Add(index, Adapter::kUp, Normed(s, r), up);
      }
      ops_.swiglu(gate, up, ffn_, gate);
      T* act = &s->act[r * RoundUpToPairs(ffn_)];
      if constexpr (std::is_same_v<T, float>) std::copy_n(gate, ffn_, act);
      else ops_.to_bf16(gate, ffn_, act);
    });
  }

  // What a row of the tile went through in a layer.
  void Record(int64_t layer, int64_t row, absl::Span<const int32_t> tile, const Scratch<T>& s) {
    const int64_t k = config_.experts_per_token;
    std::copy_n(&s.moe.ids[row * k], k,
                &routing_[(logits_row_[tile[row]] * config_.num_layers + layer) * k]);
  }

  // To the rows of the residual stream.
  void AddBias(const Crew& crew, const std::vector<float>& bias, int64_t m, Scratch<T>* s) const {
    if (bias.empty()) return;
    crew.Each(m, [&](int64_t r) {
      for (int64_t i = 0; i < hidden_; ++i) s->x[r * hidden_ + i] += bias[i];
    });
  }

  // Biases and norms of the heads, where the model has them, and rotation of one row's queries and
  // key; key and value go to the cache.
  void Prepare(const typename PackedWeights<T>::Layer& layer, int64_t index, const Row& row,
               float* q) {
    const int64_t d = config_.head_dim, block = tables_[row.table][row.position / kBlockTokens];
    float *k = q + q_width_, *v = k + kv_width_;
    for (size_t i = 0; i < layer.qkv_bias.size(); ++i) q[i] += layer.qkv_bias[i];
    for (int64_t h = 0; h < config_.num_heads; ++h) Rotate(layer.q_norm, row.position, q + h * d);
    for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
      Rotate(layer.k_norm, row.position, k + h * d);
      StoreKeyValue(cache_.Head(index, h), block, row.position % kBlockTokens, d, k + h * d,
                    v + h * d);
    }
  }

  void Rotate(const std::vector<float>& norm, int64_t position, float* head) const {
    if (!norm.empty())
      ops_.rms_norm(head, norm.data(), config_.head_dim, static_cast<float>(config_.rms_norm_eps),
                    head);
    ops_.rope(head, angles_.cos(position), angles_.sin(position), 1, angles_.pairs(), head);
  }

  // The query heads of one kv head, for a piece of the tile.
  void Attend(int64_t layer, const AttentionPlan::Unit& unit, absl::Span<const Row> rows,
              absl::Span<const int32_t> tile, Scratch<T>* s) {
    const AttentionPlan::Piece& piece = s->attention.pieces()[unit.piece];
    const int64_t head = unit.head;
    const int64_t d = config_.head_dim, group = config_.num_heads / config_.num_kv_heads;
    thread_local std::vector<AttentionQuery> queries;
    queries.clear();
    for (int64_t r = piece.first; r < piece.first + piece.count; ++r) {
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        const int64_t position = rows[tile[r]].position;
        queries.push_back({&s->qkv[r * qkv_width_ + h * d], &s->mixed[r * q_width_ + h * d],
                           WindowBegin(position, config_.sliding_window), position + 1});
      }
    }
    const int32_t* blocks = tables_[rows[tile[piece.first]].table].data();
    if constexpr (std::is_same_v<T, float>) {
      ops_.attend(queries.data(), static_cast<int64_t>(queries.size()), cache_.Head(layer, head),
                  blocks, d);
    } else {
      ops_.attend_f16(queries.data(), static_cast<int64_t>(queries.size()),
                      cache_.Head(layer, head), blocks, d);
      for (const AttentionQuery& query : queries)
        ops_.to_bf16(query.out, d, &s->narrow[query.out - s->mixed.data()]);
    }
  }

  // Logits of the rows that want them, one product per run of neighbours in the output.
  void Head(const Crew& crew, absl::Span<const int32_t> tile, float* logits, Scratch<T>* s) const {
    const int64_t vocab = config_.vocab_size, ld = RoundUpToPairs(hidden_),
                  wanted = static_cast<int64_t>(s->wanted.size());
    crew.Each(wanted, [&](int64_t i) {
      Norm(&s->x[s->wanted[i] * hidden_], packed_.final_norm(), Normed(s, i));
    });
    for (int64_t first = 0, end; first < wanted; first = end) {
      const int64_t to = logits_row_[tile[s->wanted[first]]];
      for (end = first + 1; end < wanted && logits_row_[tile[s->wanted[end]]] == to + end - first;)
        ++end;
      Product(crew, s->normed.data() + first * ld, ld, packed_.head(), end - first, vocab, hidden_,
              logits + to * vocab, false);
    }
  }

  const ModelConfig config_;
  const TensorSet* weights_;
  const Options options_;
  const int64_t hidden_, q_width_, kv_width_, qkv_width_, ffn_;
  const RopeAngles angles_;
  KvCache<T> cache_;
  const DecoderOps& ops_;
  const MoeMlp<T> moe_;
  const int64_t embed_index_ = weights_->Find("model.embed_tokens.weight");

  PackedWeights<T> packed_;
  bool adapted_ = false;  // Some row of this step has an adapter.

  // By thread where each takes its rows; the first for all of them together. May be more.
  std::vector<Scratch<T>> scratch_;
  absl::Span<const absl::Span<const int32_t>> tables_;  // Of this step.
  StepDivision division_;
  // By row of this step: where its logits go.
  std::vector<int64_t> logits_row_;
  std::vector<uint16_t> routing_;  // [wanted rows of this step, layers, k]
  // Last: its threads end before what they use.
  Team team_;
};

absl::Status CheckWeights(const ModelConfig& config, const TensorSet& weights) {
  const std::vector<TensorSpec> needed = config.Parameters(DType::kF32);
  // Of those that nothing is computed with there would be no fingerprints.
  if (weights.size() > needed.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there are ", weights.size(), " tensors of weights, the model has ", needed.size()));
  }
  for (const TensorSpec& spec : needed) {
    const int64_t i = weights.Find(spec.name);
    if (i < 0)
      return absl::InvalidArgumentError(absl::StrCat("the weights lack tensor ", spec.name));
    const TensorSpec& held = weights.spec(i);
    const bool float_type =
        held.dtype == DType::kF32 || held.dtype == DType::kBF16 || held.dtype == DType::kF16;
    if (!float_type || held.shape != spec.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", spec.name, " is ", ShapeText(held.dtype, held.shape),
                       ", needed is ", ShapeText(spec.dtype, spec.shape), " (or BF16, F16)"));
    }
  }
  return absl::OkStatus();
}

// Whether every matrix is bf16.
bool IsBf16(const ModelConfig& config, const TensorSet& weights) {
  const std::vector<TensorSpec> needed = config.Parameters(DType::kF32);
  return std::all_of(needed.begin(), needed.end(), [&](const TensorSpec& spec) {
    return spec.shape.size() < 2 || weights.spec(weights.Find(spec.name)).dtype == DType::kBF16;
  });
}

template <typename T>
absl::StatusOr<std::unique_ptr<DecodeModel>> Make(const ModelConfig& config,
                                                  const TensorSet* weights,
                                                  const DecodeModel::Options& options) {
  auto model = std::make_unique<Decoder<T>>(config, weights, options);
  SLUICE_RETURN_IF_ERROR(model->Allocate());
  return model;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeModel>> DecodeModel::Create(const ModelConfig& config,
                                                                 const TensorSet* weights,
                                                                 const Options& options) {
  SLUICE_RETURN_IF_ERROR(CheckWeights(config, *weights));
  if (options.blocks < 1 || options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("blocks ", options.blocks, " and threads ", options.threads,
                     " must be at least 1, threads at most ", kMaxThreads));
  }
  if (options.max_context < 1 || options.max_context > config.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("max_context ", options.max_context,
                                                   " is not in [1, ", config.max_context,
                                                   "], the model's max_position_embeddings"));
  }
  return IsBf16(config, *weights) ? Make<uint16_t>(config, weights, options)
                                  : Make<float>(config, weights, options);
}

}  // namespace sluice
