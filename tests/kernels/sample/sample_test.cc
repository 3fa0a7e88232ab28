#include "kernels/sample/op.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/sample/logits.h"

namespace sluice {
namespace {

SampleDraw DrawOne(const SampleRow& row, int64_t vocab) {
  SampleDraw draw;
  SampleCpu(&row, 1, vocab, &draw);
  return draw;
}

// Philox4x32-10 as the paper defines it, one round at a time on a state of four words.
std::array<uint32_t, 4> SlowPhilox(std::array<uint32_t, 4> r, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = 0xD2511F53ull * r[0], b = 0xCD9E8D57ull * r[2];
    r = {static_cast<uint32_t>(b >> 32) ^ r[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ r[3] ^ k[1], static_cast<uint32_t>(a)};
    k = {static_cast<uint32_t>(k[0] + 0x9E3779B9ull), static_cast<uint32_t>(k[1] + 0xBB67AE85ull)};
  }
  return r;
}

TEST(SampleTest, PhiloxGivesThePublishedVectors) {  // kat_vectors of the authors' Random123.
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(Philox4x32({1, 2, 3, 4}, {5, 6}), SlowPhilox({1, 2, 3, 4}, {5, 6}));
}

// A draw that is computed in double precision from the formulas of op.h.
struct SlowDraw {
  int64_t token = 0;
  double margin = 0;  // Its score minus the second highest.
  double logprob = 0;
};
SlowDraw DrawSlowly(const SampleRow& row, int64_t vocab) {
  SlowDraw draw;
  double best = -INFINITY, second = -INFINITY, sum = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const double z = static_cast<double>(row.logits[v]) / row.temperature;
    const auto words =
        SlowPhilox({static_cast<uint32_t>(v / 4), row.position, row.member, row.stream},
                   {static_cast<uint32_t>(row.key), static_cast<uint32_t>(row.key >> 32)});
    const double w = (words[v % 4] + 0.5) / 4294967296.0;
    const double score = z - std::log(-std::log1p(-w));
    sum += std::exp(z);
    if (score > best) {
      second = best;
      best = score;
      draw.token = v;
    } else {
      second = std::max(second, score);
    }
  }
  draw.margin = best - second;
  draw.logprob = static_cast<double>(row.logits[draw.token]) / row.temperature - std::log(sum);
  return draw;
}

TEST(SampleTest, DrawsFollowTheFormulas) {
  int close = 0;
  for (int64_t vocab : {1, 2, 3, 63, 64, 257, 1025, 5000}) {
    const std::vector<float> logits = RandomLogits(static_cast<uint32_t>(vocab), vocab, 2);
    for (uint32_t i = 0; i < 200; ++i) {
      const SampleRow row{.logits = logits.data(),
                          .key = 0x123456789abcdefull * i,
                          .position = i * 7,
                          .member = i % 8,
                          .stream = i % 2,
                          .temperature = 0.5f + 0.01f * i};

      const SlowDraw slow = DrawSlowly(row, vocab);
      if (slow.margin < 1e-4) {  // In fp32 this may be a tie.
        ++close;
        continue;
      }

      const SampleDraw draw = DrawOne(row, vocab);
      ASSERT_EQ(draw.token, slow.token) << "V " << vocab << " draw " << i;
      ASSERT_NEAR(draw.logprob, slow.logprob, 1e-5) << "V " << vocab << " draw " << i;
    }
  }
  EXPECT_LT(close, 10);
}

// Draws `draws` tokens from random logits, and returns by how many standard deviations the
// chi-square statistic of their counts exceeds its mean.
double ChiSquare(int64_t vocab, int64_t draws, float scale) {
  const std::vector<float> logits = RandomLogits(5, vocab, scale);
  double sum = 0;
  for (float z : logits) sum += std::exp(static_cast<double>(z));
  std::vector<int64_t> seen(vocab);
  std::vector<SampleRow> rows(1000);
  std::vector<SampleDraw> out(rows.size());
  for (int64_t done = 0; done < draws; done += static_cast<int64_t>(rows.size())) {
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = {.logits = logits.data(),
                 .key = 42,
                 .position = static_cast<uint32_t>((done + i) / 8),
                 .member = static_cast<uint32_t>(i % 8)};
    }
    SampleCpu(rows.data(), static_cast<int64_t>(rows.size()), vocab, out.data());
    for (const SampleDraw& draw : out) ++seen[draw.token];
  }

  // Tokens expected fewer than five times are counted together.
  double chi = 0, rest_expected = 0, rest_seen = 0;
  int64_t cells = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const double expected =
        std::exp(static_cast<double>(logits[v])) / sum * static_cast<double>(draws);
    if (expected < 5) {
      rest_expected += expected;
      rest_seen += static_cast<double>(seen[v]);
      continue;
    }
    chi += (seen[v] - expected) * (seen[v] - expected) / expected;
    ++cells;
  }
  if (rest_expected > 0) {
    chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  }

  const double freedom = static_cast<double>(cells - 1);
  return (chi - freedom) / std::sqrt(2 * freedom);  // About normal(0, 1).
}

TEST(SampleTest, AMillionDrawsHaveTheDistributionOfTheLogits) {
  EXPECT_LT(std::abs(ChiSquare(512, 1'000'000, 1.5f)), 4);
}

TEST(SampleTest, DrawsFromALargeVocabularyHaveItsDistribution) {
  EXPECT_LT(std::abs(ChiSquare(151'936, 4'000, 6.0f)), 4);
}

TEST(SampleTest, ADrawDependsNeitherOnItsBatchNorOnItsThread) {
  constexpr int64_t kVocab = 777, kRows = 64;
  const std::vector<float> logits = RandomLogits(9, kVocab * kRows, 3);
  std::vector<SampleRow> rows;
  for (int64_t r = 0; r < kRows; ++r) {
    rows.push_back({.logits = logits.data() + r * kVocab,
                    .key = 99,
                    .position = static_cast<uint32_t>(r),
                    .member = 3});
  }
  std::vector<SampleDraw> together(kRows), threaded(kRows);
  SampleCpu(rows.data(), kRows, kVocab, together.data());
  for (int64_t r = 0; r < kRows; ++r) EXPECT_EQ(DrawOne(rows[r], kVocab), together[r]) << r;

  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { SampleCpu(&rows[t * 16], 16, kVocab, &threaded[t * 16]); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(threaded, together);
}

TEST(SampleTest, VectorWidthsAgreeInBits) {
  for (int64_t vocab : {1, 5, 15, 16, 17, 1023, 1024, 1025, 4099}) {
    const std::vector<float> logits = RandomLogits(static_cast<uint32_t>(vocab), vocab * 32, 4);
    std::vector<SampleRow> rows;
    for (int64_t r = 0; r < 32; ++r) {
      rows.push_back({.logits = logits.data() + r * vocab,
                      .key = 7,
                      .position = static_cast<uint32_t>(r),
                      .temperature = 0.7f});
    }

    std::vector<SampleDraw> best(32), portable(32);
    SampleCpu(rows.data(), 32, vocab, best.data());
    SampleCpuPortable(rows.data(), 32, vocab, portable.data());

    EXPECT_EQ(best, portable) << vocab;
  }
}

TEST(SampleTest, ProbabilitiesOfAllTokensSumToOne) {
  constexpr int64_t kVocab = 40;
  const std::vector<float> logits = RandomLogits(3, kVocab, 0.5f);
  std::vector<double> probability(kVocab, 0);

  for (uint32_t position = 0; position < 20'000; ++position) {
    const SampleDraw draw = DrawOne(
        {.logits = logits.data(), .key = 1, .position = position, .temperature = 1.3f}, kVocab);
    ASSERT_TRUE(probability[draw.token] == 0 ||
                probability[draw.token] == std::exp(static_cast<double>(draw.logprob)));
    probability[draw.token] = std::exp(static_cast<double>(draw.logprob));
  }

  double sum = 0;
  for (double p : probability) {
    EXPECT_GT(p, 0) << "a token was never drawn";
    sum += p;
  }
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(SampleTest, TemperatureZeroTakesTheLowestIdAmongEqualLogits) {
  const std::vector<float> logits = {0, 3, 1, 3, 3};
  EXPECT_EQ(DrawOne({.logits = logits.data(), .key = 5, .temperature = 0}, 5), (SampleDraw{1, 0}));
}

TEST(SampleTest, ExtremeTemperaturesStayFinite) {
  const std::vector<float> logits = RandomLogits(4, 100, 5);
  const int64_t top = std::max_element(logits.begin(), logits.end()) - logits.begin();
  const SampleDraw cold = DrawOne({.logits = logits.data(), .key = 5, .temperature = 1e-6f}, 100);
  EXPECT_EQ(cold.token, top);
  EXPECT_EQ(cold.logprob, 0);
  const SampleDraw hot = DrawOne({.logits = logits.data(), .key = 5, .temperature = 1e6f}, 100);
  EXPECT_NEAR(hot.logprob, -std::log(100.0), 1e-4);
}

TEST(SampleTest, EqualLogitsAreDrawnEvenly) {
  const std::vector<float> logits(300, 1.5f);
  std::set<int32_t> tokens;
  for (uint32_t position = 0; position < 5000; ++position) {
    const SampleDraw draw = DrawOne({.logits = logits.data(), .key = 8, .position = position}, 300);
    EXPECT_NEAR(draw.logprob, -std::log(300.0), 1e-5);
    tokens.insert(draw.token);
  }
  EXPECT_GT(tokens.size(), 295u);
}

TEST(SampleTest, ARowThatIsNotFiniteFailsAlone) {
  constexpr int64_t kVocab = 20;
  std::vector<float> good = RandomLogits(1, kVocab, 1), nan = good, infinite = good;
  nan[13] = std::numeric_limits<float>::quiet_NaN();
  infinite[2] = kInfinity;
  const std::vector<float> nothing(kVocab, -kInfinity);
  std::vector<SampleRow> rows;
  for (const std::vector<float>* z :
       std::vector<const std::vector<float>*>{&good, &nan, &infinite, &nothing, &good})
    rows.push_back({.logits = z->data(), .key = 3});

  std::vector<SampleDraw> draws(rows.size());
  SampleCpu(rows.data(), 5, kVocab, draws.data());
  EXPECT_EQ(draws[0], DrawOne(rows[0], kVocab));
  EXPECT_GE(draws[0].token, 0);
  EXPECT_EQ(draws[1].token, -1);
  EXPECT_EQ(draws[2].token, -1);
  EXPECT_EQ(draws[3].token, -1);
  EXPECT_EQ(draws[4], draws[0]);
}

TEST(SampleTest, BannedTokensAreNeverDrawnAndLeaveTheSoftmax) {
  const std::vector<float> logits = {0, 0, 0, 0};
  const std::vector<int32_t> banned = {1, 3};
  for (uint32_t position = 0; position < 200; ++position) {
    const SampleDraw draw = DrawOne({.logits = logits.data(),
                                     .key = 3,
                                     .position = position,
                                     .banned = banned.data(),
                                     .banned_count = 2},
                                    4);
    EXPECT_TRUE(draw.token == 0 || draw.token == 2);
    EXPECT_NEAR(draw.logprob, -std::log(2.0), 1e-6);
  }

  const std::vector<int32_t> all = {0, 1, 2, 3};
  EXPECT_EQ(DrawOne({.logits = logits.data(), .banned = all.data(), .banned_count = 4}, 4).token,
            -1);
}

}  // namespace
}  // namespace sluice
