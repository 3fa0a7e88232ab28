#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/models/attention_block.h"
#include "common/models/crew.h"
#include "common/models/decode_model.h"
#include "common/models/decode_tile.h"
#include "common/models/divide.h"
#include "common/models/feed_forward.h"
#include "common/models/kv_cache.h"
#include "common/models/logits_head.h"
#include "common/models/number_ops.h"
#include "common/models/packed_weights.h"
#include "common/models/rope_angles.h"
#include "common/models/team.h"

namespace sluice {

// DecodeModel for matrices of one type: float, or uint16_t for bf16. A step is divided into tiles
// of rows. A tile goes through all layers: in each through AttentionBlock, FeedForward and the norm
// of the next layer, and at the end through LogitsHead.
template <typename T>
class Decoder final : public DecodeModel {
 public:
  // `weights` and `options` have been checked. RESOURCE_EXHAUSTED: there is not enough memory.
  static absl::StatusOr<std::unique_ptr<DecodeModel>> Create(const ModelConfig& config,
                                                             const TensorSet* weights,
                                                             const Options& options);

  void SetThreads(int threads) override;
  const DecodeWeights& weights() const override { return *packed_; }
  absl::StatusOr<std::unique_ptr<DecodeWeights>> Pack(const TensorSet& weights) const override;
  void SwapWeights(std::unique_ptr<DecodeWeights>* weights) override;
  std::vector<Fingerprint> ApplyDelta(const WeightDelta& delta, int sign) override {
    return packed_->Apply(delta, sign, &team_);
  }
  std::vector<Fingerprint> FingerprintsOf(const DecodeWeights& weights,
                                          absl::Span<const int64_t> tensors) override {
    return weights.Fingerprints(tensors, &team_);
  }
  std::vector<Fingerprint> Fingerprints() override { return packed_->Fingerprints(&team_); }
  void FlipBit() override { packed_->FlipBit(); }

  void StepWith(const DecodeWeights& weights, absl::Span<const Row> rows,
                absl::Span<const absl::Span<const int32_t>> tables, float* logits) override;
  void Draw(absl::Span<const SampleRow> rows, SampleDraw* draws) override;
  absl::Span<const uint16_t> routing() const override { return step_.routing; }

  void CopyBlock(int from, int to) override { cache_.CopyBlock(from, to); }

  const ModelConfig& config() const override { return config_; }
  const Options& options() const override { return options_; }
  int64_t memory_bytes() const override { return cache_.bytes() + packed_->bytes(); }

 private:
  Decoder(const ModelConfig& config, const Options& options);

  // Takes memory and packs the weights.
  absl::Status Allocate(const TensorSet& weights);
  // Makes a tile for each thread of the team that has none yet.
  void AllocateTiles();

  void CheckStep(absl::Span<const Row> rows,
                 absl::Span<const absl::Span<const int32_t>> tables) const;
  void BeginStep(absl::Span<const Row> rows, absl::Span<const absl::Span<const int32_t>> tables,
                 float* logits);
  void BeginTile(absl::Span<const int32_t> rows, Tile<T>* tile);

  void RunTile(const Crew& crew, Tile<T>* tile) const;
  void NormRow(int64_t layer, int64_t r, Tile<T>* tile) const;
  void ApplyNextNorm(const Crew& crew, int64_t layer, Tile<T>* tile) const;

  const ModelConfig config_;
  const Options options_;
  const DecodeShape shape_;
  const NumberOps<T> ops_;

  std::unique_ptr<PackedWeights<T>> packed_;
  const PackedWeights<T>* step_weights_ = nullptr;  // Those of the current step.
  KvCache<T> cache_;

  // attention_ keeps references to cache_ and angles_, so they are declared before it.
  const RopeAngles angles_;
  const AttentionBlock<T> attention_;
  const FeedForward<T> feed_forward_;
  const LogitsHead<T> head_;

  DecodeStep step_;
  StepDivision division_;
  // Indexed by thread if the threads work apart; the first tile serves them all if they work
  // together. There are more tiles than threads after SetThreads() has lowered the number.
  std::vector<Tile<T>> tiles_;

  // The last member, so that its threads end before what they use.
  Team team_;
};

}  // namespace sluice
