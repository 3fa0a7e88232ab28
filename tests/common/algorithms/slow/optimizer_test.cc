// The optimizer step, the averaged weights and the scores of tokens: the product against the slow
// formulas.

#include "tests/common/algorithms/slow/optimizer.h"

#include <bit>

#include "common/algorithms/proximal.h"
#include "common/base/bf16.h"
#include "common/optim/adamw.h"
#include "common/optim/grad_norm.h"
#include "common/optim/schedule.h"
#include "kernels/decoder_grad/op.h"
#include "kernels/sample/op.h"
#include "tests/common/algorithms/slow/compare.h"
#include "tests/common/algorithms/slow/random_batch.h"
#include "tests/common/algorithms/slow/scores.h"

namespace sluice::slow {
namespace {

TEST(OptimizerFp64Test, T25TheSlowFormGivesTheSheetsNumbers) {
  AdamW adam{.lr = 0.1, .wd = 0.01, .p = 1};
  const double wanted[][2] = {{0.5, 0.899}, {-0.2, 0.863540}, {0.1, 0.824738}};
  for (const auto& [gradient, p] : wanted) {
    adam.Step(gradient);
    ExpectClose(adam.p, p, "p");
  }
  EXPECT_NEAR(adam.m, 0.0325, 1e-12);
  EXPECT_NEAR(adam.v, 0.00029946, 1e-8);

  EXPECT_NEAR(ClipByNorm(GlobalNorm({3, 4, 12}), 1), 0.0769231, 1e-7);
  const double schedule[][2] = {{0, 0.25}, {3, 1},    {4, 1},   {6, 0.868198},
                                {8, 0.55}, {12, 0.1}, {20, 0.1}};
  for (const auto& [s, factor] : schedule) ExpectClose(CosineFactor(s, 4, 12, 0.1), factor, "f");

  double master = 1;
  const double rounded[] = {1, 0.99609375, 0.99609375, 0.99609375, 0.99609375};
  for (const double value : rounded) EXPECT_EQ(NearestBf16(master -= 0.001), value);
}

TEST(OptimizerFp64Test, T25AdamWFollowsTheSlowFormOverManySteps) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    const AdamWOptions options{.beta1 = 0.5 + 0.45 * random.Uniform(),
                               .beta2 = 0.9 + 0.099 * random.Uniform(),
                               .weight_decay = random.Below(2) == 0 ? 0 : 0.1};
    const bool decay = random.Below(2) == 0;
    AdamW slow{.b1 = options.beta1,
               .b2 = options.beta2,
               .eps = options.eps,
               .wd = decay ? options.weight_decay : 0,
               .p = Fp32(random.Uniform())};
    float p = static_cast<float>(slow.p), m = 0, v = 0;
    for (int t = 1; t <= 50; ++t) {
      slow.lr = 0.01 * random.Uniform();
      const float g = static_cast<float>(2 * random.Uniform() - 1);
      const double scale = random.Uniform();
      AdamWStep(options, t, slow.lr, decay, scale, 1, &g, &p, &m, &v);
      slow.Step(scale * g);
      // Fifty updates of fp32 moments and parameters.
      ASSERT_NEAR(p, slow.p, 5e-6) << "seed " << seed << " step " << t;
      ASSERT_NEAR(m, slow.m, 2e-6) << "seed " << seed << " step " << t;
      ASSERT_NEAR(v, slow.v, 2e-6) << "seed " << seed << " step " << t;
    }
  }
}

TEST(OptimizerFp64Test, T25TheClipFactorAndTheSchedulesAreTheSlowOnes) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SplitMix64 random(seed);
    std::vector<double> gradient;
    for (uint64_t n = 1 + random.Below(50); n > 0; --n)
      gradient.push_back(Fp32(std::exp(8 * random.Uniform() - 6)));
    const std::vector<float> fp32 = Floats(gradient);
    const double norm = std::sqrt(SumOfSquares(fp32.data(), static_cast<int64_t>(fp32.size())));
    ExpectSame(norm, GlobalNorm(gradient), 1e-12, "norm");
    ExpectSame(ClipFactor(norm, 1.5), ClipByNorm(norm, 1.5), 1e-14, "factor");

    const auto warmup = static_cast<int64_t>(random.Below(6)),
               total = warmup + static_cast<int64_t>(random.Below(20)) + 1;
    const double floor = random.Uniform();
    const Schedule cosine{warmup, total, floor, FindSchedule("cosine")->shape},
        constant{warmup, total, floor, FindSchedule("constant")->shape};
    for (int64_t s = 0; s < total + 3; ++s) {
      const auto step = static_cast<double>(s), w = static_cast<double>(warmup);
      EXPECT_NEAR(cosine.Factor(s), CosineFactor(step, w, static_cast<double>(total), floor),
                  1e-12);
      EXPECT_NEAR(constant.Factor(s), ConstantFactor(step, w), 1e-12);
    }
  }
}

TEST(OptimizerFp64Test, T25MasterWeightsAreCastToTheNearestBf16TiesToEven) {
  SplitMix64 random(25);
  const auto expect_nearest = [](float value) {
    EXPECT_EQ(FloatFromBf16(Bf16FromFloat(value)), static_cast<float>(NearestBf16(value)))
        << std::hexfloat << value;
  };
  for (int n = 0; n < 100000; ++n) {
    auto bits = static_cast<uint32_t>(random.Next());
    if (n % 4 == 1) bits = (bits & 0xffff0000) | 0x8000;  // Between two bf16 numbers.
    if (n % 4 == 2) bits &= 0x807fffff;                   // Subnormal.
    if (n % 4 == 3) bits = (bits & 0x807f0000) | 0x8000;  // Both.
    const float value = std::bit_cast<float>(bits);
    if (std::isfinite(value)) expect_nearest(value);
  }
  for (const float value : {0.0f, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min(), 0x1.fep127f, 0x1.ffp127f})
    expect_nearest(value);
}

TEST(OptimizerFp64Test, TheAverageOfTheWeightsFollowsTheSlowRecurrence) {
  ExpectAllClose(AverageWeights(1, {1.1, 1.3, 1.2}, 0.889),
                 std::vector<double>{1.052938, 1.145149, 1.161368}, "phi");
  for (const double beta : {0.0, 0.5, 0.889, 0.99}) {
    SplitMix64 random(4);
    std::vector<double> theta;
    for (int n = 0; n < 200; ++n) theta.push_back(random.Uniform());
    const std::vector<double> slow = AverageWeights(0.3, theta, beta);
    double phi = 0.3;
    for (int n = 0; n < 200; ++n) {
      const EwmaWeights w = EwmaAt(beta, n + 1);
      phi = w.old_weight * phi + w.new_weight * theta[n];
      EXPECT_NEAR(phi, slow[n], 1e-10) << beta << " update " << n + 1;
    }
  }
}

TEST(ScoresFp64Test, TheSlowFormGivesTheSheetsNumbers) {
  const Logits z = {1, 0, -1};
  const double wanted[][3] = {{-0.407606, -1.407606, -2.407606}, {-0.260118, -1.688690, -3.117261}};
  for (size_t a = 0; a < 3; ++a) {
    ExpectClose(LogProb(z, 1, a), wanted[0][a], "lp");
    ExpectClose(LogProb(z, 0.7, a), wanted[1][a], "lp at 0.7");
  }
  ExpectClose(Entropy(z, 1), 0.832396, "entropy");
  ExpectAllClose(LogitGradient([](const Logits& v) { return Entropy(v, 1); }, z),
                 std::vector<double>{-0.282587, 0.140770, 0.141817}, "entropy gradient");
}

// The product's scores are fp32 sums over the vocabulary, of exponentials that are fp32 too.
TEST(ScoresFp64Test, T05LogProbsEntropiesAndTheirGradientsAreThoseOfTheSlowForm) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SplitMix64 random(seed);
    const size_t vocab = 2 + random.Below(90), target = random.Below(vocab);
    const float temperature = seed % 3 == 0 ? 1.0f : 0.5f + static_cast<float>(random.Uniform());
    Logits z;
    for (size_t v = 0; v < vocab; ++v) z.push_back(Fp32(8 * random.Uniform() - 4));
    std::vector<float> logits = Floats(z);

    const TokenScore score = ScoreCpu(logits.data(), static_cast<int64_t>(vocab), temperature,
                                      static_cast<int32_t>(target));
    EXPECT_NEAR(score.logprob, LogProb(z, temperature, target), 5e-6) << seed;
    EXPECT_NEAR(score.entropy, Entropy(z, temperature), 5e-6) << seed;

    const float dlp = 0.7f, dentropy = -0.3f;
    const Logits slow = LogitGradient(
        [&](const Logits& v) {
          return dlp * LogProb(v, temperature, target) + dentropy * Entropy(v, temperature);
        },
        z);
    BestDecoderGradOps().score_grad(logits.data(), static_cast<int64_t>(vocab), 1 / temperature,
                                    static_cast<int64_t>(target), score.entropy, score.logsumexp,
                                    dlp, dentropy);
    for (size_t v = 0; v < vocab; ++v) EXPECT_NEAR(logits[v], slow[v], 2e-6) << seed;
  }
}

}  // namespace
}  // namespace sluice::slow
