#include "common/models/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/splitmix.h"

namespace sluice {
namespace {

using Ids = std::vector<uint16_t>;

Ids Pick(const std::vector<float>& logits, size_t k) {
  Ids ids(k);
  PickExperts(logits, absl::MakeSpan(ids));
  return ids;
}

TEST(MoeTest, TheLikeliestExpertsAreTakenAndOfEqualOnesTheFirst) {
  EXPECT_EQ(Pick({1, 5, 3, 4}, 1), (Ids{1}));
  EXPECT_EQ(Pick({1, 5, 3, 4}, 2), (Ids{1, 3}));
  EXPECT_EQ(Pick({5, 1, 3, 4}, 4), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(Pick({2, 2, 2, 2}, 2), (Ids{0, 1}));
  EXPECT_EQ(Pick({0, 7, 2, 7, 2}, 3), (Ids{1, 2, 3}));
  EXPECT_EQ(Pick({-1, -2, -3}, 2), (Ids{0, 1}));
}

std::vector<float> RandomLogits(uint64_t seed, size_t n) {
  SplitMix64 random(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(6 * random.Uniform() - 3);
  return out;
}

TEST(MoeTest, ThePickIsThatOfASort) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> logits = RandomLogits(seed, 1 + seed % 40);
    const size_t k = 1 + seed % logits.size();

    Ids all(logits.size());
    for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<uint16_t>(e);
    std::stable_sort(all.begin(), all.end(),
                     [&](uint16_t a, uint16_t b) { return logits[a] > logits[b]; });
    all.resize(k);
    std::sort(all.begin(), all.end());

    EXPECT_EQ(Pick(logits, k), all) << seed;
  }
}

std::vector<double> Weights(const std::vector<float>& logits, const Ids& ids, bool normalize) {
  double all = 0, some = 0;
  for (const float x : logits) all += std::exp(double{x});
  for (const uint16_t id : ids) some += std::exp(double{logits[id]});
  std::vector<double> out;
  for (const uint16_t id : ids)
    out.push_back(std::exp(double{logits[id]}) / (normalize ? some : all));
  return out;
}

TEST(MoeTest, WeightsAreTheSoftmaxAndTheirGradientsItsCentralDifferences) {
  const Ids ids = {1, 4, 8};
  const std::vector<float> dweights = {0.7f, -0.4f, 1.1f};
  for (const bool normalize : {false, true}) {
    std::vector<float> logits = RandomLogits(3, 9), got(3), dlogits(9);

    WeighExperts(logits, ids, normalize, got.data());
    const std::vector<double> want = Weights(logits, ids, normalize);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[i], want[i], 1e-6);

    WeighExpertsGrad(logits, ids, normalize, got.data(), dweights.data(), dlogits.data());
    for (size_t e = 0; e < logits.size(); ++e) {
      const auto loss = [&](float shift) {
        std::vector<float> moved = logits;
        moved[e] += shift;
        const std::vector<double> w = Weights(moved, ids, normalize);
        return w[0] * dweights[0] + w[1] * dweights[1] + w[2] * dweights[2];
      };
      EXPECT_NEAR(dlogits[e], (loss(1e-2f) - loss(-1e-2f)) / 2e-2, 1e-4) << "expert " << e;
    }
  }
}

TEST(MoeTest, WeighedProbabilitiesAreThoseOfTheSoftmaxAndTheirGradientsCentralDifferences) {
  const std::vector<double> coefficients = {0.5, -1, 2, 0, 0.25, 3, -0.75};
  const std::vector<float> logits = RandomLogits(5, 7);
  const auto slow = [&](size_t moved, double shift) {
    double sum = 0, weighed = 0;
    for (size_t e = 0; e < logits.size(); ++e) {
      const double p = std::exp(double{logits[e]} + (e == moved ? shift : 0));
      sum += p, weighed += coefficients[e] * p;
    }
    return weighed / sum;
  };
  EXPECT_NEAR(WeighProbabilities(logits, coefficients), slow(0, 0), 1e-6);

  std::vector<float> dlogits(logits.size());
  WeighProbabilitiesGrad(logits, coefficients, 3, dlogits.data());
  for (size_t e = 0; e < logits.size(); ++e)
    EXPECT_NEAR(dlogits[e], 3 * (slow(e, 1e-4) - slow(e, -1e-4)) / 2e-4, 1e-5) << "expert " << e;
}

}  // namespace
}  // namespace sluice
