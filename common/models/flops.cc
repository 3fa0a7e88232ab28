#include "common/models/flops.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/models/parallel.h"
#include "kernels/decoder/op.h"

namespace sluice {
namespace {
constexpr absl::Duration kMeasureTime = absl::Milliseconds(15);
constexpr int kMeasurements = 3;  // The fastest one counts: other work can only slow it down.
constexpr int64_t kSize = 256;    // The three matrices of a product fit into a core's own cache.
}  // namespace

double TrainingFlops(const ModelConfig& config, absl::Span<const int64_t> positions,
                     int64_t scored) {
  const auto to_double = [](int64_t n) { return static_cast<double>(n); };
  const double hidden = to_double(config.hidden_size);
  const double heads = to_double(config.num_heads * config.head_dim);
  const double kv_heads = to_double(config.num_kv_heads * config.head_dim);
  // Multiply-adds of a token in one layer: q, k, v and o, then gate, up and down.
  double layer = hidden * (2 * heads + 2 * kv_heads);
  if (config.num_experts > 0) {
    layer += hidden * to_double(config.num_experts) +
             3 * hidden * to_double(config.experts_per_token * config.expert_size);
  } else {
    layer += 3 * hidden * to_double(config.intermediate_size);
  }

  double attended = 0;  // Pairs of a query and a key.
  for (const int64_t position : positions)
    attended += to_double(position + 1 - WindowBegin(position, config.sliding_window));

  const double forward =
      to_double(config.num_layers) *
          (layer * to_double(static_cast<int64_t>(positions.size())) + 2 * heads * attended) +
      hidden * to_double(config.vocab_size) * to_double(scored);
  return 2 * 3 * forward;
}

double MeasurePeakFlops(DType dtype) {
  const DecoderOps& ops = BestDecoderOps();
  const bool bf16 = dtype == DType::kBF16;
  const std::vector<float> x(kSize * kSize), packed(PackedFloats(kSize, kSize));
  const std::vector<uint16_t> x_bf16(kSize * kSize), packed_bf16(PackedBf16s(kSize, kSize));

  double best = 0;
  for (int i = 0; i < kMeasurements; ++i) {
    std::atomic<int64_t> products = 0;
    const absl::Duration start = Clock::Real()->Monotonic();
    // More pieces than any machine has cores: each thread gets one range.
    ParallelFor(1 << 16, 1, [&](int64_t, int64_t) {
      std::vector<float> y(kSize * kSize);
      while (Clock::Real()->Monotonic() - start < kMeasureTime) {
        if (bf16) {
          ops.gemm_bf16(x_bf16.data(), kSize, packed_bf16.data(), kSize, kSize, kSize, y.data(),
                        kSize, /*add=*/false);
        } else {
          ops.gemm(x.data(), kSize, packed.data(), kSize, kSize, kSize, y.data(), kSize,
                   /*add=*/false);
        }
        ++products;
      }
    });
    const double seconds = absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start);
    best = std::max(best, static_cast<double>(products) * 2 * kSize * kSize * kSize / seconds);
  }
  return best;
}

}  // namespace sluice
