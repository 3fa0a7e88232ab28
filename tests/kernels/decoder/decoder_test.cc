#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "common/base/bf16.h"
#include "common/base/splitmix.h"
#include "kernels/decoder/op.h"
#include "kernels/decoder_grad/op.h"

// Compares every instruction set that this machine runs with formulas in double precision, for
// shapes that no vector width divides. The gradients of norm, SwiGLU and attention are compared
// with central differences of those formulas.
namespace sluice {
namespace {

std::vector<float> Random(uint64_t seed, int64_t n, double scale = 1) {
  SplitMix64 random(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(scale * (2 * random.Uniform() - 1));
  return out;
}

class DecoderKernelTest : public testing::TestWithParam<const DecoderOps*> {};

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 1, 1},    {1, 16, 8},    {3, 17, 5},    {12, 32, 64},
                             {13, 33, 31}, {29, 172, 64}, {48, 64, 192}, {5, 47, 300}};

std::vector<float> Multiply(const DecoderOps& ops, const Shape& s, bool transposed, bool add) {
  const std::vector<float> x = Random(1, s.m * s.k), w = Random(2, s.n * s.k);
  std::vector<float> packed(PackedFloats(s.n, s.k)), y = Random(3, s.m * s.n);
  PackRows(w.data(), s.n, s.k, 0, packed.data());
  if (transposed) {
    std::vector<float> x_transposed(s.m * s.k);
    for (int64_t r = 0; r < s.m; ++r) {
      for (int64_t i = 0; i < s.k; ++i) x_transposed[i * s.m + r] = x[r * s.k + i];
    }
    ops.gemm_transposed(x_transposed.data(), s.m, packed.data(), s.m, s.n, s.k, y.data(), s.n, add);
  } else {
    ops.gemm(x.data(), s.k, packed.data(), s.m, s.n, s.k, y.data(), s.n, add);
  }
  return y;
}

TEST_P(DecoderKernelTest, ProductsAreThoseOfDoubles) {
  for (const Shape& s : kShapes) {
    for (const bool transposed : {false, true}) {
      for (const bool add : {false, true}) {
        const std::vector<float> x = Random(1, s.m * s.k), w = Random(2, s.n * s.k),
                                 before = Random(3, s.m * s.n),
                                 y = Multiply(*GetParam(), s, transposed, add);
        for (int64_t r = 0; r < s.m; ++r) {
          for (int64_t c = 0; c < s.n; ++c) {
            double want = add ? before[r * s.n + c] : 0;
            for (int64_t i = 0; i < s.k; ++i) want += double{x[r * s.k + i]} * w[c * s.k + i];
            ASSERT_NEAR(y[r * s.n + c], want, 2e-5) << s.m << " x " << s.n << " x " << s.k;
          }
        }
      }
    }
  }
}

TEST_P(DecoderKernelTest, ARowOfAProductHasTheSameBitsWhateverItsCompany) {
  const Shape s{41, 80, 64};
  const std::vector<float> all = Multiply(*GetParam(), s, false, false), x = Random(1, s.m * s.k),
                           w = Random(2, s.n * s.k);
  std::vector<float> packed(PackedFloats(s.n, s.k)), alone(s.n);
  PackRows(w.data(), s.n, s.k, 0, packed.data());
  for (int64_t r = 0; r < s.m; ++r) {
    GetParam()->gemm(&x[r * s.k], s.k, packed.data(), 1, s.n, s.k, alone.data(), s.n, false);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), &all[r * s.n])) << r;
  }
  EXPECT_EQ(Multiply(*GetParam(), s, true, false), all);
}

TEST_P(DecoderKernelTest, APanelHasTheWordsOfItsRowsTurnedAndGivesThemBack) {
  for (const int64_t k : {1, 3, 4, 15, 16, 17, 40, 151}) {
    SplitMix64 random(static_cast<uint64_t>(k));
    std::vector<uint32_t> w(kDecoderLanes * k), panel(w.size()), back(w.size());
    for (uint32_t& word : w) word = static_cast<uint32_t>(random.Next());
    GetParam()->pack_panel(w.data(), k, panel.data());
    for (int64_t r = 0; r < kDecoderLanes; ++r) {
      for (int64_t i = 0; i < k; ++i)
        ASSERT_EQ(panel[i * kDecoderLanes + r], w[r * k + i]) << r << " " << i << " of " << k;
    }
    GetParam()->unpack_panel(panel.data(), k, back.data());
    EXPECT_EQ(back, w) << k;
  }
}

TEST_P(DecoderKernelTest, ColumnsArePackedAsTheRowsOfTheirTransposeRoundedToBf16) {
  for (const int64_t k : {1, 2, 7, 40}) {
    const int64_t ldw = 19;
    const std::vector<float> w = Random(8, k * ldw);
    std::vector<uint16_t> transposed(kDecoderLanes * RoundUpToPairs(k)), want(transposed.size()),
        got(transposed.size(), 0x7FC0);
    for (int64_t r = 0; r < kDecoderLanes; ++r) {
      for (int64_t i = 0; i < k; ++i)
        GetParam()->to_bf16(&w[i * ldw + r], 1, &transposed[r * RoundUpToPairs(k) + i]);
    }
    PackRows(transposed.data(), kDecoderLanes, RoundUpToPairs(k), 0, want.data());
    GetParam()->pack_columns_bf16(w.data(), ldw, k, got.data());
    EXPECT_EQ(got, want) << k;
  }
}

TEST_P(DecoderKernelTest, NormAndSwiGluAreThoseOfDoubles) {
  for (const int64_t n : {1, 2, 8, 15, 16, 33, 64, 172}) {
    const std::vector<float> x = Random(4, n, 3), w = Random(5, n);
    std::vector<float> y(n), z(n);
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    GetParam()->rms_norm(x.data(), w.data(), n, 1e-6f, y.data());

    const std::vector<float> gate = Random(6, n, 20);
    GetParam()->swiglu(gate.data(), w.data(), n, z.data());
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(y[i], x[i] / std::sqrt(squares / n + 1e-6) * w[i], 1e-6);
      const double want = gate[i] / (1 + std::exp(-double{gate[i]})) * w[i];
      EXPECT_NEAR(z[i], want, 1e-6 * std::abs(want) + 1e-12);
    }
  }
}

// Keys and values [positions, D] in a cache whose blocks are not in the order of the positions.
// Unused numbers are NaN.
template <typename T>
struct Paged {
  Paged(const std::vector<float>& k, const std::vector<float>& v, int64_t positions, int64_t d)
      : blocks((positions + kKvBlockTokens - 1) / kKvBlockTokens),
        stride(KvHead<T>::BlockSize(d) + 6),
        data(blocks.size() * stride,
             sizeof(T) == 4 ? static_cast<T>(NAN) : static_cast<T>(0x7FC0)) {
    for (size_t i = 0; i < blocks.size(); ++i)
      blocks[i] = static_cast<int32_t>(blocks.size() - 1 - i);
    for (int64_t t = 0; t < positions; ++t) {
      StoreKeyValue(head(), blocks[t / kKvBlockTokens], t % kKvBlockTokens, d, &k[t * d],
                    &v[t * d]);
    }
  }
  KvHead<T> head() const { return {const_cast<T*>(data.data()), stride}; }

  std::vector<int32_t> blocks;
  int64_t stride;
  std::vector<T> data;
};

// Computes attention of query rows [group, D] over `positions` keys in double precision.
std::vector<double> Attention(const float* q, const float* k, const float* v, int64_t positions,
                              int64_t group, int64_t d) {
  std::vector<double> out(group * d);
  for (int64_t g = 0; g < group; ++g) {
    std::vector<double> p(positions);
    double max = -1e300, sum = 0;
    for (int64_t j = 0; j < positions; ++j) {
      for (int64_t c = 0; c < d; ++c)
        p[j] += double{q[g * d + c]} * k[j * d + c] / std::sqrt(static_cast<double>(d));
      max = std::max(max, p[j]);
    }
    for (double& x : p) sum += x = std::exp(x - max);
    for (int64_t j = 0; j < positions; ++j) {
      for (int64_t c = 0; c < d; ++c) out[g * d + c] += p[j] / sum * v[j * d + c];
    }
  }
  return out;
}

std::vector<uint16_t> ToBf16(const std::vector<float>& x) {
  std::vector<uint16_t> out(x.size());
  DecoderOpsKinds().back()->to_bf16(x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

std::vector<float> RoundToBf16(const std::vector<float>& x) {
  std::vector<float> out;
  for (const uint16_t y : ToBf16(x)) out.push_back(FloatFromBf16(y));
  return out;
}

std::vector<float> RoundToFp16(const std::vector<float>& x) {
  std::vector<float> out;
  for (const float y : x) out.push_back(static_cast<float>(static_cast<_Float16>(y)));
  return out;
}

// Computes attention of `rows` queries. Each query sees one position more than the one before it,
// and the last one sees all.
template <typename T>
std::vector<float> Attend(const DecoderOps& ops, const std::vector<float>& q,
                          const std::vector<float>& k, const std::vector<float>& v, int64_t rows,
                          int64_t positions, int64_t d, int64_t window = 0) {
  const Paged<T> paged(k, v, positions, d);
  std::vector<float> out(rows * d);
  std::vector<AttentionQuery> queries;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t last = positions - rows + r;
    queries.push_back({&q[r * d], &out[r * d], WindowBegin(last, window), last + 1});
  }
  if constexpr (sizeof(T) == 4)
    ops.attend(queries.data(), rows, paged.head(), paged.blocks.data(), d);
  else ops.attend_f16(queries.data(), rows, paged.head(), paged.blocks.data(), d);
  return out;
}

TEST_P(DecoderKernelTest, AttentionIsThatOfDoublesAndSeesNothingBehindItsPositions) {
  for (const int64_t d : {2, 6, 8, 16, 32, 40}) {
    for (const int64_t positions : {1, 15, 32, 33, 100, 128, 129, 300}) {
      for (const int64_t rows : {1, 2, 5}) {
        if (rows > positions) continue;
        const std::vector<float> q = Random(7, rows * d, 4), k = Random(8, positions * d, 2),
                                 v = Random(9, positions * d);
        const std::vector<float> narrow_k = RoundToFp16(k), narrow_v = RoundToFp16(v);

        const std::vector<float> out = Attend<float>(*GetParam(), q, k, v, rows, positions, d);
        const std::vector<float> narrow =
            Attend<uint16_t>(*GetParam(), q, k, v, rows, positions, d);

        for (int64_t r = 0; r < rows; ++r) {
          const int64_t seen = positions - rows + r + 1;
          const std::vector<double> want = Attention(&q[r * d], k.data(), v.data(), seen, 1, d);
          const std::vector<double> want_narrow =
              Attention(&q[r * d], narrow_k.data(), narrow_v.data(), seen, 1, d);
          for (int64_t i = 0; i < d; ++i) {
            ASSERT_NEAR(out[r * d + i], want[i], 5e-6)
                << "D " << d << ", " << positions << " positions";
            ASSERT_NEAR(narrow[r * d + i], want_narrow[i], 5e-6)
                << "fp16, D " << d << ", " << positions << " positions";
          }
        }
      }
    }
  }
}

TEST_P(DecoderKernelTest, AQueryWithAWindowSeesNothingBeforeIt) {
  const int64_t d = 40, positions = 290, rows = 5;
  const std::vector<float> q = Random(7, rows * d, 4), k = Random(8, positions * d, 2),
                           v = Random(9, positions * d);
  for (const int64_t window : {1, 3, 16, 33, 128, 160, 289}) {
    const std::vector<float> out = Attend<float>(*GetParam(), q, k, v, rows, positions, d, window);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t last = positions - rows + r, begin = WindowBegin(last, window);
      const std::vector<double> want =
          Attention(&q[r * d], &k[begin * d], &v[begin * d], last + 1 - begin, 1, d);
      for (int64_t i = 0; i < d; ++i)
        ASSERT_NEAR(out[r * d + i], want[i], 5e-6) << "window " << window << ", row " << r;
    }
  }
}

TEST_P(DecoderKernelTest, AQueryHasTheSameBitsWhateverItsCompany) {
  const int64_t d = 48, positions = 290, rows = 7;
  const std::vector<float> q = Random(7, rows * d, 4), k = Random(8, positions * d, 2),
                           v = Random(9, positions * d);
  const std::vector<float> all = Attend<float>(*GetParam(), q, k, v, rows, positions, d),
                           narrow = Attend<uint16_t>(*GetParam(), q, k, v, rows, positions, d);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> one(q.begin() + r * d, q.begin() + (r + 1) * d);
    const int64_t seen = positions - rows + r + 1;
    EXPECT_EQ(Attend<float>(*GetParam(), one, k, v, 1, seen, d),
              std::vector<float>(all.begin() + r * d, all.begin() + (r + 1) * d));
    EXPECT_EQ(Attend<uint16_t>(*GetParam(), one, k, v, 1, seen, d),
              std::vector<float>(narrow.begin() + r * d, narrow.begin() + (r + 1) * d));
  }
}

// Returns x times a bf16 weight. x is rounded to bf16 if `rounded`, and otherwise used as it is.
std::vector<float> MultiplyBf16(const DecoderOps& ops, const Shape& s, bool rounded) {
  const std::vector<float> x = Random(1, s.m * s.k);
  const std::vector<uint16_t> narrow = ToBf16(x), w = ToBf16(Random(2, s.n * s.k));
  const int64_t ld = RoundUpToPairs(s.k);
  std::vector<uint16_t> padded(s.m * ld), packed(PackedBf16s(s.n, s.k));
  std::vector<float> padded_wide(s.m * ld), y = Random(3, s.m * s.n);
  for (int64_t r = 0; r < s.m; ++r)
    std::copy_n(&narrow[r * s.k], s.k, &padded[r * ld]),
        std::copy_n(&x[r * s.k], s.k, &padded_wide[r * ld]);
  PackRows(w.data(), s.n, s.k, 0, packed.data());
  if (rounded) ops.gemm_bf16(padded.data(), ld, packed.data(), s.m, s.n, s.k, y.data(), s.n, true);
  else ops.gemm_mixed(padded_wide.data(), ld, packed.data(), s.m, s.n, s.k, y.data(), s.n, true);
  return y;
}

TEST_P(DecoderKernelTest, Bf16ProductsAreThoseOfDoubles) {
  for (const Shape& s : kShapes) {
    for (const bool rounded : {true, false}) {
      const std::vector<float> whole = Random(1, s.m * s.k),
                               x = rounded ? RoundToBf16(whole) : whole,
                               w = RoundToBf16(Random(2, s.n * s.k));
      const std::vector<float> before = Random(3, s.m * s.n),
                               y = MultiplyBf16(*GetParam(), s, rounded);
      for (int64_t r = 0; r < s.m; ++r) {
        for (int64_t c = 0; c < s.n; ++c) {
          double want = before[r * s.n + c];
          for (int64_t i = 0; i < s.k; ++i) want += double{x[r * s.k + i]} * w[c * s.k + i];
          ASSERT_NEAR(y[r * s.n + c], want, 2e-5) << s.m << " x " << s.n << " x " << s.k;
        }
      }
    }
  }
}

TEST_P(DecoderKernelTest, HalvesAreTheNearestOnes) {
  std::vector<float> x = {0.0f,     -0.0f,    1.0f,     65504.0f, 65519.0f,   65520.0f,   -1e9f,
                          INFINITY, 0x1p-14f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1.8p-24f, 0x1p-60f};
  for (const float y : Random(11, 5000))
    x.push_back(y), x.push_back(y * 0x1p-13f), x.push_back(y * 3e4f);
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {  // Halfway between each half and the next.
    x.push_back(static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(bits))) +
                std::ldexp(1.0f, std::max<int>(bits >> 10, 1) - 26));
  }
  std::vector<uint16_t> got(x.size());
  GetParam()->to_f16(x.data(), static_cast<int64_t>(x.size()), got.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(got[i],
              std::bit_cast<uint16_t>(static_cast<_Float16>(std::clamp(x[i], -65504.0f, 65504.0f))))
        << x[i];
  }

  const float nan = NAN;
  GetParam()->to_f16(&nan, 1, got.data());
  EXPECT_TRUE(std::isnan(static_cast<float>(std::bit_cast<_Float16>(got[0]))));
}

TEST_P(DecoderKernelTest, GateAndUpInOneProductHaveTheBitsOfTwoAndSwiGlu) {
  for (const Shape& s : kShapes) {
    const std::vector<float> x = Random(1, s.m * s.k), gate = Random(2, s.n * s.k),
                             up = Random(4, s.n * s.k);
    std::vector<float> both(2 * PackedFloats(s.n, s.k)), gates(PackedFloats(s.n, s.k)),
        ups(gates.size()), want(s.m * s.n), right(want), got(want);
    PackRows(gate.data(), s.n, s.k, 0, gates.data()), PackRows(up.data(), s.n, s.k, 0, ups.data());
    for (int64_t n = 0; n < s.n; ++n) {
      PackRows(&gate[n * s.k], 1, s.k, n / 16 * 32 + n % 16, both.data()),
          PackRows(&up[n * s.k], 1, s.k, n / 16 * 32 + 16 + n % 16, both.data());
    }

    GetParam()->gemm(x.data(), s.k, gates.data(), s.m, s.n, s.k, want.data(), s.n, false);
    GetParam()->gemm(x.data(), s.k, ups.data(), s.m, s.n, s.k, right.data(), s.n, false);
    GetParam()->swiglu(want.data(), right.data(), s.m * s.n, want.data());
    GetParam()->gate_up(x.data(), s.k, both.data(), s.m, s.n, s.k, got.data(), s.n);
    EXPECT_EQ(got, want) << s.m << " x " << s.n << " x " << s.k;
  }
}

TEST(DecoderKernelKindsTest, FusedKindsAgreeInBits) {
  const DecoderOps* first = nullptr;
  for (const DecoderOps* ops : DecoderOpsKinds()) {
    if (std::string(ops->name) == "base") continue;
    if (first == nullptr) first = ops;
    for (const Shape& s : kShapes)
      EXPECT_EQ(Multiply(*ops, s, false, true), Multiply(*first, s, false, true)) << ops->name;

    const std::vector<float> x = Random(4, 83), w = Random(5, 83);
    std::vector<float> a(83), b(83);
    ops->rms_norm(x.data(), w.data(), 83, 1e-6f, a.data());
    first->rms_norm(x.data(), w.data(), 83, 1e-6f, b.data());
    EXPECT_EQ(a, b) << ops->name;
    ops->swiglu(x.data(), w.data(), 83, a.data()), first->swiglu(x.data(), w.data(), 83, b.data());
    EXPECT_EQ(a, b) << ops->name;
    for (const Shape& s : kShapes) {
      for (const bool rounded : {true, false})
        EXPECT_EQ(MultiplyBf16(*ops, s, rounded), MultiplyBf16(*first, s, rounded)) << ops->name;
    }

    const std::vector<float> q = Random(7, 5 * 40, 4), k = Random(8, 300 * 40, 2),
                             v = Random(9, 300 * 40);
    EXPECT_EQ(Attend<float>(*ops, q, k, v, 5, 300, 40), Attend<float>(*first, q, k, v, 5, 300, 40))
        << ops->name;
    EXPECT_EQ(Attend<uint16_t>(*ops, q, k, v, 5, 300, 40),
              Attend<uint16_t>(*first, q, k, v, 5, 300, 40))
        << ops->name;
  }
}

class DecoderGradKernelTest : public testing::TestWithParam<const DecoderGradOps*> {};

// d loss / d x[i] by central differences.
template <typename Loss>
double Difference(std::vector<float>* x, int64_t i, Loss loss) {
  const float kept = (*x)[i], step = 1e-2f;
  (*x)[i] = kept + step;
  const double up = (*x)[i], above = loss();
  (*x)[i] = kept - step;
  const double down = (*x)[i], below = loss();
  (*x)[i] = kept;
  return (above - below) / (up - down);
}

TEST_P(DecoderGradKernelTest, NormAndSwiGluGradientsAreCentralDifferences) {
  const int64_t n = 19;
  std::vector<float> x = Random(1, n, 2), w = Random(2, n), gate = Random(3, n, 3),
                     up = Random(4, n);
  const std::vector<float> dy = Random(5, n);
  std::vector<float> dx(n), dw(n, 1.0f), dgate(n), dup(n);
  GetParam()->rms_norm(x.data(), w.data(), dy.data(), n, 1e-6f, dx.data(), dw.data());
  GetParam()->swiglu(gate.data(), up.data(), dy.data(), n, dgate.data(), dup.data());

  const auto norm = [&] {
    double squares = 0, loss = 0;
    for (const float v : x) squares += double{v} * v;
    for (int64_t i = 0; i < n; ++i) loss += dy[i] * (x[i] / std::sqrt(squares / n + 1e-6) * w[i]);
    return loss;
  };
  const auto swiglu = [&] {
    double loss = 0;
    for (int64_t i = 0; i < n; ++i)
      loss += dy[i] * (gate[i] / (1 + std::exp(-double{gate[i]})) * up[i]);
    return loss;
  };

  for (int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(dx[i], Difference(&x, i, norm), 1e-4);
    EXPECT_NEAR(dw[i] - 1, Difference(&w, i, norm), 1e-4) << "added to what was there";
    EXPECT_NEAR(dgate[i], Difference(&gate, i, swiglu), 1e-4);
    EXPECT_NEAR(dup[i], Difference(&up, i, swiglu), 1e-4);
  }
}

TEST_P(DecoderGradKernelTest, SoftmaxAndItsGradientAreThoseOfDoubles) {
  for (const int64_t n : {1, 2, 15, 33, 300}) {
    const std::vector<float> s = Random(1, n, 40), dp = Random(2, n, 3);
    std::vector<float> p = s, ds = dp;
    GetParam()->softmax(p.data(), ds.data(), n);
    const double max = *std::max_element(s.begin(), s.end());
    double sum = 0, mean = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(s[i] - max);
    for (int64_t i = 0; i < n; ++i) mean += std::exp(s[i] - max) / sum * dp[i];
    for (int64_t i = 0; i < n; ++i) {
      const double want = std::exp(s[i] - max) / sum;
      ASSERT_NEAR(p[i], want, 1e-6);
      ASSERT_NEAR(ds[i], want * (dp[i] - mean), 2e-6);
    }
  }
}

TEST_P(DecoderGradKernelTest, GradientsOfScoresAreThoseOfDoubles) {
  const float inverse = 1 / 0.7f, dlp = 0.8f, dentropy = -0.3f;
  for (const int64_t vocab : {1, 7, 16, 131}) {
    std::vector<float> z = Random(1, vocab, 5), dz = z;
    const int64_t target = vocab / 2;
    struct Score {
      double lp, entropy, lse;
    };
    const auto score = [&] {
      double sum = 0, mean = 0;
      for (const float x : z) sum += std::exp(double{x} * inverse);
      for (const float x : z) mean += std::exp(double{x} * inverse) / sum * (double{x} * inverse);
      return Score{double{z[target]} * inverse - std::log(sum), std::log(sum) - mean,
                   std::log(sum)};
    };

    const Score at = score();
    GetParam()->score_grad(dz.data(), vocab, inverse, target, static_cast<float>(at.entropy),
                           static_cast<float>(at.lse), dlp, dentropy);
    for (int64_t i = 0; i < vocab; ++i) {
      EXPECT_NEAR(dz[i],
                  Difference(&z, i, [&] { return dlp * score().lp + dentropy * score().entropy; }),
                  2e-4);
    }
  }
}

template <typename Ops>
std::string NameOf(const testing::TestParamInfo<const Ops*>& info) {
  return info.param->name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, DecoderKernelTest,
                         testing::ValuesIn(DecoderOpsKinds().begin(), DecoderOpsKinds().end()),
                         NameOf<DecoderOps>);
INSTANTIATE_TEST_SUITE_P(Kinds, DecoderGradKernelTest,
                         testing::ValuesIn(DecoderGradOpsKinds().begin(),
                                           DecoderGradOpsKinds().end()),
                         NameOf<DecoderGradOps>);

}  // namespace
}  // namespace sluice
