// Top-k, top-p and min-p: which tokens are kept, and draws among them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sample/op.h"
#include "tests/kernels/sample/logits.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

struct Kept {
  SampleDraw draw;
  std::vector<int32_t> ids;
};

Kept Draw(SampleRow row, int64_t vocab) {
  Kept kept;
  kept.ids.resize(vocab);
  row.kept = kept.ids.data();
  SampleCpu(&row, 1, vocab, &kept.draw);
  kept.ids.resize(kept.draw.kept);
  return kept;
}

// Finds the kept tokens by sorting, in double precision. Sets `margin` to the smallest distance
// between a sum or ratio and a bound of top-p or min-p.
std::vector<int32_t> FindKeptSlowly(const SampleRow& row, int64_t vocab, double* margin) {
  std::vector<double> z(vocab);
  // These are rounded to float, as in the sampler.
  for (int64_t v = 0; v < vocab; ++v) z[v] = row.logits[v] / row.temperature;
  for (int32_t i = 0; i < row.banned_count; ++i) z[row.banned[i]] = -INFINITY;
  std::vector<int32_t> ids;
  for (int64_t v = 0; v < vocab; ++v) {
    if (z[v] > -INFINITY) ids.push_back(static_cast<int32_t>(v));
  }
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return z[a] > z[b]; });
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < ids.size()) ids.resize(row.top_k);

  *margin = 1;
  double total = 0, sum = 0;
  const double max = z[ids[0]];
  for (int32_t id : ids) total += std::exp(z[id] - max);

  if (row.top_p < 1) {
    size_t count = 0;
    while (count < ids.size() && sum < row.top_p * total) {
      sum += std::exp(z[ids[count++]] - max);
      *margin = std::min(*margin, std::abs(sum / total - row.top_p));
    }
    ids.resize(count);
  }

  if (row.min_p > 0) {
    std::erase_if(ids, [&](int32_t id) {
      const double ratio = std::exp(z[id] - max);
      // The ratio of the best tokens is exactly 1 in the sampler too, so it is never too close.
      *margin = std::min(*margin, std::abs(ratio - row.min_p) + (ratio == 1 ? 1 : 0));
      return ratio < row.min_p;
    });
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(KeptSetTest, EqualsWhatSortingGives) {
  std::mt19937 random(7);
  int compared = 0;
  for (int i = 0; i < 3000; ++i) {
    const int64_t vocab = 1 + random() % 600;
    std::vector<float> logits = RandomLogits(i, vocab, 0.5f + random() % 5);
    if (i % 3 == 0) {
      for (float& z : logits) z = std::round(z * 2) / 2;  // Many ties.
    }
    const std::vector<int32_t> banned = {static_cast<int32_t>(random() % vocab)};
    SampleRow row{.logits = logits.data(),
                  .key = static_cast<uint64_t>(i),
                  .temperature = 0.5f + 0.01f * (random() % 100)};
    if (vocab > 1 && i % 5 == 0) {
      row.banned = banned.data();
      row.banned_count = 1;
    }

    if (random() % 2) row.top_k = 1 + random() % vocab;
    if (random() % 2) row.top_p = (1 + random() % 1000) / 1001.0;
    if (random() % 2) row.min_p = (random() % 1000) / 1000.0f;

    double margin;
    const std::vector<int32_t> slow = FindKeptSlowly(row, vocab, &margin);
    if (margin < 1e-6) continue;  // In fp32 the comparison may differ.
    ++compared;

    const Kept kept = Draw(row, vocab);
    ASSERT_EQ(kept.ids, slow) << "case " << i << ", V " << vocab << ", top_k " << row.top_k
                              << ", top_p " << row.top_p << ", min_p " << row.min_p;
    ASSERT_TRUE(std::binary_search(slow.begin(), slow.end(), kept.draw.token));
    double sum = 0;
    for (int32_t id : slow)
      sum += std::exp(static_cast<double>(logits[id] / row.temperature) -
                      logits[kept.draw.token] / row.temperature);
    ASSERT_NEAR(kept.draw.logprob, -std::log(sum), 2e-5);
  }
  EXPECT_GT(compared, 2500);
}

TEST(KeptSetTest, ADrawWithACutIsTheDrawAmongThoseKeptWithTheSameNoise) {
  const std::vector<float> logits = RandomLogits(3, 300, 1.5f);
  for (uint32_t position = 0; position < 500; ++position) {
    const SampleRow row{.logits = logits.data(),
                        .key = 11,
                        .position = position,
                        .member = 2,
                        .top_k = 40,
                        .top_p = 0.9};
    const Kept kept = Draw(row, 300);

    std::vector<float> masked(300, -kInfinity);
    for (int32_t id : kept.ids) masked[id] = logits[id];
    const Kept replay =
        Draw({.logits = masked.data(), .key = 11, .position = position, .member = 2}, 300);

    EXPECT_EQ(replay.draw.token, kept.draw.token);
    EXPECT_EQ(replay.draw.logprob, kept.draw.logprob) << "in bits";
    EXPECT_EQ(replay.ids, kept.ids);
  }
}

TEST(KeptSetTest, ExtremesKeepTheMostLikelyAlone) {
  std::vector<float> logits = RandomLogits(9, 1000, 2);
  const auto top =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());

  for (const SampleRow& row :
       {SampleRow{.logits = logits.data(), .top_p = 1e-9},
        SampleRow{.logits = logits.data(), .top_k = 1},
        SampleRow{.logits = logits.data(), .min_p = 1},
        SampleRow{.logits = logits.data(), .temperature = 1e-6f, .top_p = 0.999}}) {
    const Kept kept = Draw(row, 1000);
    EXPECT_THAT(kept.ids, ElementsAre(top));
    EXPECT_EQ(kept.draw.token, top);
    EXPECT_EQ(kept.draw.logprob, 0);
  }

  const SampleRow hot{.logits = logits.data(), .temperature = 100, .top_p = 0.5};
  EXPECT_NEAR(static_cast<double>(Draw(hot, 1000).ids.size()), 500, 20);
}

TEST(KeptSetTest, TiesAtTheCutKeepTheLowestIds) {
  const std::vector<float> logits = {1, 0, 2, 0, 1, 1, -0.0f};
  EXPECT_THAT(Draw({.logits = logits.data(), .top_k = 3}, 7).ids, ElementsAre(0, 2, 4));
  EXPECT_THAT(Draw({.logits = logits.data(), .top_k = 6}, 7).ids, ElementsAre(0, 1, 2, 3, 4, 5))
      << "-0 is 0";
  EXPECT_THAT(Draw({.logits = logits.data(), .min_p = 1}, 7).ids, ElementsAre(2));
  const std::vector<float> equal(8, 3.0f);
  EXPECT_THAT(Draw({.logits = equal.data(), .top_p = 0.5}, 8).ids, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Draw({.logits = equal.data(), .top_p = 0.51}, 8).ids, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(Draw({.logits = equal.data(), .min_p = 1}, 8).ids.size(), 8u);
  EXPECT_EQ(Draw({.logits = equal.data(), .top_k = 100}, 8).ids.size(), 8u);
}

TEST(KeptSetTest, RowsThatCannotBeDrawnFromKeepNothing) {
  const std::vector<float> infinite = {0, kInfinity, 1}, nan = {0, std::nanf(""), 1},
                           nothing(3, -kInfinity);
  for (const std::vector<float>& logits : {infinite, nan, nothing}) {
    const Kept kept = Draw({.logits = logits.data(), .top_k = 2, .top_p = 0.5, .min_p = 0.1f}, 3);
    EXPECT_EQ(kept.draw.token, -1);
    EXPECT_TRUE(kept.ids.empty());
  }
  const std::vector<float> one = {-kInfinity, 5, -kInfinity};
  EXPECT_THAT(Draw({.logits = one.data(), .top_k = 2, .top_p = 0.5}, 3).ids, ElementsAre(1));
}

TEST(KeptSetTest, VectorWidthsAgreeInBits) {
  for (int64_t vocab : {5, 17, 1025, 4099}) {
    const std::vector<float> logits = RandomLogits(static_cast<uint32_t>(vocab), vocab * 32, 3);
    std::vector<SampleRow> rows;
    for (int64_t r = 0; r < 32; ++r) {
      rows.push_back({.logits = logits.data() + r * vocab,
                      .key = 7,
                      .position = static_cast<uint32_t>(r),
                      .temperature = 0.7f,
                      .top_k = static_cast<int32_t>(r),
                      .top_p = 1 - r / 64.0,
                      .min_p = r / 1000.0f});
    }

    std::vector<SampleDraw> best(32), portable(32);
    SampleCpu(rows.data(), 32, vocab, best.data());
    SampleCpuPortable(rows.data(), 32, vocab, portable.data());

    EXPECT_EQ(best, portable) << vocab;
  }
}

TEST(KeptSetTest, AHundredThousandDrawsHaveTheDistributionOfTheKeptSet) {
  constexpr int64_t kVocab = 512, kDraws = 100'000;
  const std::vector<float> logits = RandomLogits(5, kVocab, 1.5f);
  const std::vector<int32_t> kept =
      Draw({.logits = logits.data(), .top_k = 100, .top_p = 0.8}, kVocab).ids;
  ASSERT_GT(kept.size(), 10u);
  double sum = 0;
  for (int32_t id : kept) sum += std::exp(static_cast<double>(logits[id]));

  std::vector<int64_t> seen(kVocab);
  std::vector<SampleRow> rows(1000);
  std::vector<SampleDraw> draws(rows.size());
  for (int64_t done = 0; done < kDraws; done += 1000) {
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = {.logits = logits.data(),
                 .key = 4,
                 .position = static_cast<uint32_t>(done + i),
                 .top_k = 100,
                 .top_p = 0.8};
    }
    SampleCpu(rows.data(), 1000, kVocab, draws.data());
    for (const SampleDraw& draw : draws) ++seen[draw.token];
  }

  double chi = 0;
  for (int32_t id : kept) {
    const double expected = std::exp(static_cast<double>(logits[id])) / sum * kDraws;
    chi += (seen[id] - expected) * (seen[id] - expected) / expected;
    seen[id] = 0;
  }
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), int64_t{0}), 0)
      << "drawn outside the kept set";
  const double freedom = static_cast<double>(kept.size() - 1);
  EXPECT_LT(std::abs(chi - freedom) / std::sqrt(2 * freedom), 4);
}

TEST(KeptSetTest, TheMostLikelyComeInOrderWithTheLogprobsOfADraw) {
  const std::vector<float> logits = {0, 2, 1, 2, -1};
  int32_t ids[5];
  float logprobs[5];
  ASSERT_EQ(TopLogprobsCpu({.logits = logits.data()}, 5, 3, ids, logprobs), 3);
  EXPECT_THAT(std::vector<int32_t>(ids, ids + 3), ElementsAre(1, 3, 2));
  EXPECT_EQ(logprobs[0], LogprobCpu({.logits = logits.data()}, 5, 1));
  ASSERT_EQ(TopLogprobsCpu({.logits = logits.data(), .top_k = 2}, 5, 5, ids, logprobs), 2);
  EXPECT_NEAR(logprobs[0], -std::log(2.0), 1e-6);
  EXPECT_EQ(TopLogprobsCpu({.logits = logits.data(), .temperature = 0}, 5, 5, ids, logprobs), 1);
  EXPECT_EQ(ids[0], 1);
}

}  // namespace
}  // namespace sluice
