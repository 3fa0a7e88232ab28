#include "common/checkpoint/init.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// Computes ln x for x > 0 with an error of about 1e-16. It uses only operations that IEEE 754
// rounds exactly, so that every machine gets the same bits; a libm does not promise that. Method: x
// = m 2^e with m near 1, and ln m = 2 atanh((m - 1) / (m + 1)).
double PortableLog(double x) {
  int e = 0;
  double m = std::frexp(x, &e);  // In [1/2, 1).
  if (m < 0.70710678118654752) m *= 2, --e;
  const double t = (m - 1) / (m + 1), t2 = t * t;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
  return 2 * t * sum + e * 0.69314718055994531;
}

// Standard normal numbers by Marsaglia's polar method: two per accepted point of the unit disc.
class Normal {
 public:
  explicit Normal(uint64_t seed) : uniform_(seed) {}

  double Next() {
    if (have_spare_) {
      have_spare_ = false;
      return spare_;
    }
    double u, v, s;
    do {
      u = 2 * uniform_.Uniform() - 1;
      v = 2 * uniform_.Uniform() - 1;
      s = u * u + v * v;
    } while (s >= 1 || s == 0);
    const double scale = std::sqrt(-2 * PortableLog(s) / s);
    spare_ = v * scale;
    have_spare_ = true;
    return u * scale;
  }

 private:
  SplitMix64 uniform_;
  double spare_ = 0;
  bool have_spare_ = false;
};

uint64_t Fnv1a64(absl::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

}  // namespace

absl::StatusOr<TensorSet> InitWeights(const ModelConfig& config, uint64_t seed, DType dtype) {
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights, TensorSet::Create(config.Parameters(dtype)));
  std::vector<float> values;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = weights.spec(i).name;
    values.assign(weights.elements(i), 1.0f);
    if (!absl::EndsWith(name, "norm.weight")) {
      Normal normal(Mix64(seed + kGolden) ^ Mix64(Fnv1a64(name)));
      std::generate(values.begin(), values.end(),
                    [&] { return static_cast<float>(config.initializer_range * normal.Next()); });
    }
    SLUICE_RETURN_IF_ERROR(
        ConvertElements(DType::kF32, values.data(), dtype, weights.data(i), weights.elements(i)));
  }
  return weights;
}

}  // namespace sluice
