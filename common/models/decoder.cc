#include "common/models/decoder.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/models/adapter.h"

namespace sluice {
namespace {

// Logits from which one thread draws at a time: some ten microseconds.
constexpr int64_t kDrawLogits = 1 << 14;

}  // namespace

template <typename T>
absl::StatusOr<std::unique_ptr<DecodeModel>> Decoder<T>::Create(const ModelConfig& config,
                                                                const TensorSet* weights,
                                                                const Options& options) {
  std::unique_ptr<Decoder> decoder(new Decoder(config, options));
  SLUICE_RETURN_IF_ERROR(decoder->Allocate(*weights));
  return decoder;
}

template <typename T>
Decoder<T>::Decoder(const ModelConfig& config, const Options& options)
    : config_(config),
      options_(options),
      shape_(config),
      cache_(config),
      angles_(config.rope, config.head_dim, options.max_context),
      attention_(config, &angles_, &cache_),
      feed_forward_(config),
      head_(config),
      division_(config),
      team_(options.threads, "sluice-decode") {}

template <typename T>
absl::Status Decoder<T>::Allocate(const TensorSet& weights) {
  SLUICE_RETURN_IF_ERROR(cache_.Allocate(options_.blocks));
  SLUICE_ASSIGN_OR_RETURN(packed_, PackedWeights<T>::Create(config_, weights.specs()));
  packed_->Pack(weights, &team_);

  division_.Configure(team_.size(), packed_->matrix_bytes());
  AllocateTiles();
  return absl::OkStatus();
}

template <typename T>
void Decoder<T>::AllocateTiles() {
  constexpr int64_t kRows = StepDivision::kMaxTileRows;
  while (static_cast<int>(tiles_.size()) < team_.size()) {
    Tile<T>& tile = tiles_.emplace_back();
    tile.step = &step_;
    tile.x.resize(kRows * shape_.hidden);
    tile.normed.Allocate(kRows, shape_.hidden_stride);
    tile.qkv.resize(kRows * shape_.qkv);
    tile.mixed.Allocate(kRows, shape_.q);
    feed_forward_.Allocate(kRows, &tile);
  }
}

template <typename T>
void Decoder<T>::SetThreads(int threads) {
  SLUICE_CHECK(threads >= 1 && threads <= kMaxThreads);
  if (threads == team_.size()) return;

  team_.Resize(threads);
  division_.Configure(threads, packed_->matrix_bytes());
  AllocateTiles();
}

template <typename T>
absl::StatusOr<std::unique_ptr<DecodeWeights>> Decoder<T>::Pack(const TensorSet& weights) const {
  SLUICE_CHECK(absl::c_equal(weights.specs(), packed_->specs()));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeights<T>> packed,
                          PackedWeights<T>::Create(config_, weights.specs()));
  Team alone(1, "sluice-pack");
  packed->Pack(weights, &alone);
  return packed;
}

template <typename T>
void Decoder<T>::SwapWeights(std::unique_ptr<DecodeWeights>* weights) {
  // Pack() and Copy() make nothing else for this model.
  auto* const packed = static_cast<PackedWeights<T>*>(weights->release());
  SLUICE_CHECK(packed != nullptr && packed->matrix_bytes() == packed_->matrix_bytes());
  weights->reset(packed_.release());
  packed_.reset(packed);
}

template <typename T>
void Decoder<T>::StepWith(const DecodeWeights& weights, absl::Span<const Row> rows,
                          absl::Span<const absl::Span<const int32_t>> tables, float* logits) {
  CheckStep(rows, tables);
  // Pack() and Copy() make nothing else for this model.
  step_weights_ = static_cast<const PackedWeights<T>*>(&weights);
  BeginStep(rows, tables, logits);

  const size_t tile_rows = static_cast<size_t>(division_.tile_rows());
  if (division_.Divide(rows, tables.size()) == StepDivision::Way::kApart) {
    team_.Run([&](int thread) {
      Tile<T>& tile = tiles_[thread];
      const absl::Span<const int32_t> mine = division_.rows_of(thread);
      for (size_t i = 0; i < mine.size(); i += tile_rows) {
        BeginTile(mine.subspan(i, tile_rows), &tile);
        RunTile(Crew::OneThread(), &tile);
      }
    });
    return;
  }

  Tile<T>& tile = tiles_[0];
  const Crew crew = Crew::AllOf(&team_);
  const absl::Span<const int32_t> all = division_.rows_of(0);
  for (size_t i = 0; i < all.size(); i += tile_rows) {
    BeginTile(all.subspan(i, tile_rows), &tile);
    team_.Run([&](int) { RunTile(crew, &tile); });
  }
}

template <typename T>
void Decoder<T>::CheckStep(absl::Span<const Row> rows,
                           absl::Span<const absl::Span<const int32_t>> tables) const {
  for (const Row& row : rows) {
    SLUICE_CHECK(row.position >= 0 && row.position < options_.max_context);
    SLUICE_CHECK(row.token >= 0 && row.token < config_.vocab_size);
    SLUICE_CHECK(row.adapter == nullptr || row.adapter->Fits(config_));
    SLUICE_CHECK(row.table >= 0 && row.table < static_cast<int64_t>(tables.size()));
    SLUICE_CHECK(row.position / kBlockTokens < static_cast<int64_t>(tables[row.table].size()));
  }
  for (const absl::Span<const int32_t> table : tables) {
    for (const int32_t block : table) SLUICE_CHECK(block >= 0 && block < options_.blocks);
  }
}

template <typename T>
void Decoder<T>::BeginStep(absl::Span<const Row> rows,
                           absl::Span<const absl::Span<const int32_t>> tables, float* logits) {
  step_.rows = rows;
  step_.tables = tables;
  step_.logits = logits;
  step_.adapted = false;

  int64_t wanted = 0;
  step_.output_row.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    step_.output_row[i] = wanted;
    if (rows[i].want_logits) ++wanted;
    if (rows[i].adapter != nullptr) step_.adapted = true;
  }
  step_.routing.resize(wanted * config_.num_layers * config_.experts_per_token);

  if (step_.adapted) {
    for (Tile<T>& tile : tiles_)
      feed_forward_.AllocateForAdapters(StepDivision::kMaxTileRows, &tile);
  }
}

template <typename T>
void Decoder<T>::BeginTile(absl::Span<const int32_t> rows, Tile<T>* tile) {
  SLUICE_CHECK(static_cast<int64_t>(rows.size()) <= StepDivision::kMaxTileRows);
  tile->rows = rows;
  tile->attention.Make(step_.rows, rows, step_.tables, config_.num_kv_heads);
  tile->wanted.clear();
  for (int64_t r = 0; r < tile->size(); ++r) {
    if (tile->row(r).want_logits) tile->wanted.push_back(static_cast<int32_t>(r));
  }
}

// All threads of `crew` call it.
template <typename T>
void Decoder<T>::RunTile(const Crew& crew, Tile<T>* tile) const {
  crew.ForEach(tile->size(), [&](int64_t r) {
    step_weights_->ReadEmbedding(tile->row(r).token, &tile->x[r * shape_.hidden]);
    NormRow(0, r, tile);
  });

  for (int64_t i = 0; i < config_.num_layers; ++i) {
    attention_.AddTo(crew, i, step_weights_->layers()[i], tile);
    feed_forward_.AddTo(crew, i, step_weights_->layers()[i], tile);
    ApplyNextNorm(crew, i + 1, tile);
  }

  head_.Compute(crew, *step_weights_, tile);
}

// The first norm of a layer, for a row of the tile.
template <typename T>
void Decoder<T>::NormRow(int64_t layer, int64_t r, Tile<T>* tile) const {
  ops_.Norm(&tile->x[r * shape_.hidden], step_weights_->layers()[layer].input_norm,
            config_.rms_norm_eps, tile->normed.exact(r));
}

// After the last layer there is nothing to do: LogitsHead norms only the rows that want logits.
template <typename T>
void Decoder<T>::ApplyNextNorm(const Crew& crew, int64_t layer, Tile<T>* tile) const {
  if (layer == config_.num_layers) return;
  crew.ForEach(tile->size(), [&](int64_t r) { NormRow(layer, r, tile); });
}

template <typename T>
void Decoder<T>::Draw(absl::Span<const SampleRow> rows, SampleDraw* draws) {
  const int64_t vocab = config_.vocab_size, n = static_cast<int64_t>(rows.size());
  const int64_t unit = std::max<int64_t>(1, kDrawLogits / vocab), units = (n + unit - 1) / unit;
  if (units < 2) return SampleCpu(rows.data(), n, vocab, draws);

  team_.Run([&](int) {
    team_.Share(units, [&](int64_t i) {
      SampleCpu(&rows[i * unit], std::min(unit, n - i * unit), vocab, draws + i * unit);
    });
  });
}

template class Decoder<float>;
template class Decoder<uint16_t>;

}  // namespace sluice
