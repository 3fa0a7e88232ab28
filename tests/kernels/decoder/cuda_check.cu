#include <cmath>

#include "kernels/decoder/op_cuda.h"
#include "tests/kernels/cuda/check.h"

namespace sluice {
namespace {

using cuda_check::ManyFloats;
using cuda_check::Measure;
using cuda_check::OnDevice;
using cuda_check::RandomFloats;
using cuda_check::SameBits;
using cuda_check::Small;

std::vector<uint16_t> Bf16(const std::vector<float>& x) {
  std::vector<uint16_t> y(x.size());
  BestDecoderOps().to_bf16(x.data(), static_cast<int64_t>(x.size()), y.data());
  return y;
}

CUDA_CASE(TheReferenceHasFusedMultiplyAdd) {
  CUDA_EXPECT(BestDecoderOps().name != std::string("base"))
      << "this CPU has no fused multiply-add, and the kernels give the bits of the kinds with it; "
         "run the check on another CPU";
}

void CheckProducts(int64_t m, int64_t n, int64_t k) {
  const DecoderOps& ops = BestDecoderOps();
  const std::vector<float> x = RandomFloats(1, m * k),
                           w = RandomFloats(2, 2 * RoundUpToLanes(n) * k),
                           before = RandomFloats(3, m * n);
  // The weights are not packed, because any numbers serve as a packed weight.
  const std::vector<uint16_t> narrow_x = Bf16(x), narrow_w = Bf16(w);
  std::vector<float> y(m * n), added = before, gated(m * n), narrow(m * n), narrow_added = before;
  std::vector<uint16_t> narrow_gated(m * n);
  OnDevice<float> dx(x), dw(w), dy(y.size()), dadded(before), dgated(gated.size()),
      dnarrow(narrow.size()), dnarrow_added(before);
  OnDevice<uint16_t> dnx(narrow_x), dnw(narrow_w), dng(narrow_gated.size());

  ops.gemm(x.data(), k, w.data(), m, n, k, y.data(), n, false);
  ops.gemm(x.data(), k, w.data(), m, n, k, added.data(), n, true);
  ops.gate_up(x.data(), k, w.data(), m, n, k, gated.data(), n);
  ops.gemm_bf16(narrow_x.data(), k, narrow_w.data(), m, n, k, narrow.data(), n, false);
  ops.gemm_bf16(narrow_x.data(), k, narrow_w.data(), m, n, k, narrow_added.data(), n, true);
  ops.gate_up_bf16(narrow_x.data(), k, narrow_w.data(), m, n, k, narrow_gated.data(), n);

  CUDA_OK(cuda::Gemm(dx.data(), k, dw.data(), m, n, k, dy.data(), n, false, nullptr));
  CUDA_OK(cuda::Gemm(dx.data(), k, dw.data(), m, n, k, dadded.data(), n, true, nullptr));
  CUDA_OK(cuda::GateUp(dx.data(), k, dw.data(), m, n, k, dgated.data(), n, nullptr));
  CUDA_OK(cuda::GemmBf16(dnx.data(), k, dnw.data(), m, n, k, dnarrow.data(), n, false, nullptr));
  CUDA_OK(
      cuda::GemmBf16(dnx.data(), k, dnw.data(), m, n, k, dnarrow_added.data(), n, true, nullptr));
  CUDA_OK(cuda::GateUpBf16(dnx.data(), k, dnw.data(), m, n, k, dng.data(), n, nullptr));

  CUDA_EXPECT(SameBits(dy.CopyToHost(), y)) << m << " rows";
  CUDA_EXPECT(SameBits(dadded.CopyToHost(), added)) << m << " rows";
  CUDA_EXPECT(SameBits(dgated.CopyToHost(), gated)) << m << " rows";
  CUDA_EXPECT(SameBits(dnarrow.CopyToHost(), narrow)) << m << " rows";
  CUDA_EXPECT(SameBits(dnarrow_added.CopyToHost(), narrow_added)) << m << " rows";
  CUDA_EXPECT(SameBits(dng.CopyToHost(), narrow_gated)) << m << " rows";
}

CUDA_CASE(ProductsHaveTheBitsOfTheCpu) {
  for (const int64_t m : {1, 5, 13, 70}) CheckProducts(m, 40, 66);
}

// The same for enough outputs that the kernels take their largest tiles, which the last rows and
// columns fill only in part.
CUDA_CASE(LargeProductsHaveTheBitsOfTheCpu) {
  const int64_t m = 771, n = 2056, gated_n = n / 2, k = 18;
  const std::vector<float> x = RandomFloats(1, m * k),
                           w = RandomFloats(2, 2 * RoundUpToLanes(gated_n) * k);
  const std::vector<uint16_t> narrow_x = Bf16(x), narrow_w = Bf16(w);
  std::vector<float> y(m * n);
  std::vector<uint16_t> gated(m * gated_n);
  OnDevice<float> dx(x), dw(w), dy(y.size());
  OnDevice<uint16_t> dnx(narrow_x), dnw(narrow_w), dgated(gated.size());
  BestDecoderOps().gemm(x.data(), k, w.data(), m, n, k, y.data(), n, false);
  BestDecoderOps().gate_up_bf16(narrow_x.data(), k, narrow_w.data(), m, gated_n, k, gated.data(),
                                gated_n);
  CUDA_OK(cuda::Gemm(dx.data(), k, dw.data(), m, n, k, dy.data(), n, false, nullptr));
  CUDA_OK(
      cuda::GateUpBf16(dnx.data(), k, dnw.data(), m, gated_n, k, dgated.data(), gated_n, nullptr));
  CUDA_EXPECT(SameBits(dy.CopyToHost(), y));
  CUDA_EXPECT(SameBits(dgated.CopyToHost(), gated));
}

// Adding a product of zeros to a sum of -0 would change its bits, so the kernels must not do so
// where they process more steps than there are.
CUDA_CASE(ASumOfMinusZeroStaysMinusZero) {
  for (const int64_t m : {1, 20}) {
    const int64_t n = 16, k = 6;
    // The first product is too small for fp32.
    std::vector<float> x(m * k, -0.0f), w(n * k, 0.0f), y(m * n);
    for (int64_t r = 0; r < m; ++r) x[r * k] = -1e-30f;
    for (int64_t lane = 0; lane < n; ++lane) w[lane] = 1e-30f;
    OnDevice<float> dx(x), dw(w), dy(y.size());
    BestDecoderOps().gemm(x.data(), k, w.data(), m, n, k, y.data(), n, false);
    CUDA_OK(cuda::Gemm(dx.data(), k, dw.data(), m, n, k, dy.data(), n, false, nullptr));
    CUDA_EXPECT(std::signbit(y[0])) << m << " rows";
    CUDA_EXPECT(SameBits(dy.CopyToHost(), y)) << m << " rows";
  }
}

CUDA_CASE(DenormalsOfBf16ProductsCountAsZero) {
  const int64_t n = 16, k = 2;
  const std::vector<uint16_t> x = {0x0001, 0x3F80}, w(RoundUpToLanes(n) * k, 0x8001);
  std::vector<float> y(n);
  OnDevice<uint16_t> dx(x), dw(w);
  OnDevice<float> dy(y.size());
  BestDecoderOps().gemm_bf16(x.data(), k, w.data(), 1, n, k, y.data(), n, false);
  CUDA_OK(cuda::GemmBf16(dx.data(), k, dw.data(), 1, n, k, dy.data(), n, false, nullptr));
  CUDA_EXPECT(SameBits(dy.CopyToHost(), y));
}

CUDA_CASE(NormHasTheBitsOfTheCpu) {
  for (const int64_t n : {1, 16, 77, 300, 5000}) {
    const int64_t m = 3;
    const std::vector<float> x = RandomFloats(1, m * n), weight = RandomFloats(2, n);
    std::vector<float> y(m * n);
    OnDevice<float> dx(x), dweight(weight), dy(y.size());
    for (int64_t r = 0; r < m; ++r)
      BestDecoderOps().rms_norm(&x[r * n], weight.data(), n, 1e-6f, &y[r * n]);
    CUDA_OK(cuda::RmsNorm(dx.data(), dweight.data(), m, n, 1e-6f, dy.data(), nullptr));
    CUDA_EXPECT(SameBits(dy.CopyToHost(), y)) << n << " numbers";

    // In place.
    CUDA_OK(cuda::RmsNorm(dx.data(), dweight.data(), m, n, 1e-6f, dx.data(), nullptr));
    CUDA_EXPECT(SameBits(dx.CopyToHost(), y)) << n << " numbers, in place";
  }
}

CUDA_CASE(SwiGluHasTheBitsOfTheCpu) {
  for (const int64_t n : {1, 128, 1000}) {
    const std::vector<float> gate = RandomFloats(1, n, 20), up = RandomFloats(2, n);
    std::vector<float> y(n);
    OnDevice<float> dgate(gate), dup(up), dy(y.size());
    BestDecoderOps().swiglu(gate.data(), up.data(), n, y.data());
    CUDA_OK(cuda::SwiGlu(dgate.data(), dup.data(), n, dy.data(), nullptr));
    CUDA_EXPECT(SameBits(dy.CopyToHost(), y)) << n << " numbers";
  }
}

CUDA_CASE(RopeHasTheBitsOfTheCpu) {
  const int64_t m = 3, heads = 5;
  const std::vector<int32_t> positions = {4, 0, 9};
  for (const int64_t half : {1, 24, 64}) {
    for (const float sign : {1.0f, -1.0f}) {
      // A row is wider than its heads. The tables contain any numbers instead of cosines and sines.
      const int64_t ldx = heads * 2 * half + 3;
      std::vector<float> x = RandomFloats(1, m * ldx);
      const std::vector<float> cos = RandomFloats(2, 10 * half), sin = RandomFloats(3, 10 * half);
      OnDevice<float> dx(x), dcos(cos), dsin(sin);
      OnDevice<int32_t> dpositions(positions);

      for (int64_t r = 0; r < m; ++r) {
        for (int64_t h = 0; h < heads; ++h) {
          float* const head = &x[r * ldx + h * 2 * half];
          BestDecoderOps().rope(head, &cos[positions[r] * half], &sin[positions[r] * half], sign,
                                half, head);
        }
      }
      CUDA_OK(cuda::Rope(dx.data(), ldx, m, heads, dpositions.data(), dcos.data(), dsin.data(),
                         sign, half, nullptr));

      CUDA_EXPECT(SameBits(dx.CopyToHost(), x)) << "half " << half << ", sign " << sign;
    }
  }
}

template <typename T>
int AttendOnDevice(const cuda::PagedQuery<T>* queries, int64_t count, int64_t d) {
  if constexpr (sizeof(T) == 4) {
    return cuda::Attend(queries, count, d, nullptr);
  } else {
    return cuda::AttendF16(queries, count, d, nullptr);
  }
}

template <typename T>
void CheckAttention(int64_t positions, int64_t begin, int64_t d) {
  const int64_t stride = KvHead<T>::BlockSize(d),
                count = (positions + kKvBlockTokens - 1) / kKvBlockTokens;
  std::vector<T> pool(count * stride);
  std::vector<int32_t> blocks(count);
  for (int64_t i = 0; i < count; ++i) blocks[i] = static_cast<int32_t>(count - 1 - i);
  const std::vector<float> q = RandomFloats(1, d), k = RandomFloats(2, positions * d),
                           v = RandomFloats(3, positions * d);
  for (int64_t p = 0; p < positions; ++p) {
    StoreKeyValue({pool.data(), stride}, blocks[p / kKvBlockTokens], p % kKvBlockTokens, d,
                  &k[p * d], &v[p * d]);
  }

  std::vector<float> out(d);
  const AttentionQuery query{q.data(), out.data(), begin, positions};
  if constexpr (sizeof(T) == 4) {
    BestDecoderOps().attend(&query, 1, {pool.data(), stride}, blocks.data(), d);
  } else {
    BestDecoderOps().attend_f16(&query, 1, {pool.data(), stride}, blocks.data(), d);
  }

  OnDevice<float> dq(q), dout(out.size());
  OnDevice<T> dpool(pool);
  OnDevice<int32_t> dblocks(blocks);
  OnDevice<cuda::PagedQuery<T>> queries(std::vector<cuda::PagedQuery<T>>{
      {{dq.data(), dout.data(), begin, positions}, {dpool.data(), stride}, dblocks.data()}});
  CUDA_OK(AttendOnDevice(queries.data(), 1, d));
  CUDA_EXPECT(SameBits(dout.CopyToHost(), out))
      << positions << " positions from " << begin << ", D " << d;
}

CUDA_CASE(AttentionHasTheBitsOfTheCpu) {
  for (const int64_t d : {6, 64, 160}) {
    for (const int64_t positions : {1, 33, 128, 300, 1100}) {
      for (const int64_t begin : {int64_t{0}, positions - 1, positions / 2}) {
        CheckAttention<float>(positions, begin, d);
        CheckAttention<uint16_t>(positions, begin, d);
      }
    }
  }
}

CUDA_CASE(AttentionRefusesLargeHeads) {
  CUDA_EXPECT(cuda::Attend(nullptr, 1, 257, nullptr) == cudaErrorInvalidValue);
  CUDA_EXPECT(cuda::AttendF16(nullptr, 1, 257, nullptr) == cudaErrorInvalidValue);
}

CUDA_BENCH(ProductSpeed) {
  const int64_t n = Small() ? 32 : 4096, k = n;
  const std::vector<float> w = ManyFloats(2 * n * k);
  OnDevice<float> weight(w);
  OnDevice<uint16_t> narrow_weight(Bf16(w));
  for (const int64_t m : {1, 64, 1024}) {
    if (Small() && m > 1) continue;
    const std::vector<float> x = ManyFloats(m * k);
    OnDevice<float> input(x), y(m * n);
    OnDevice<uint16_t> narrow_input(Bf16(x)), narrow_y(m * n);
    const double flops = 2.0 * static_cast<double>(m * n * k);
    const auto bytes = static_cast<double>(m * k + n * k + m * n);
    const std::string rows = ", " + std::to_string(m) + " rows";
    Measure("gemm" + rows, 4 * bytes, flops, [&] {
      CUDA_OK(cuda::Gemm(input.data(), k, weight.data(), m, n, k, y.data(), n, false, nullptr));
    });
    Measure("gemm_bf16" + rows, 2 * bytes, flops, [&] {
      CUDA_OK(cuda::GemmBf16(narrow_input.data(), k, narrow_weight.data(), m, n, k, y.data(), n,
                             false, nullptr));
    });
    Measure("gate_up_bf16" + rows, 2 * (bytes + static_cast<double>(n * k)), 2 * flops, [&] {
      CUDA_OK(cuda::GateUpBf16(narrow_input.data(), k, narrow_weight.data(), m, n, k,
                               narrow_y.data(), n, nullptr));
    });
  }
}

CUDA_BENCH(PointwiseSpeed) {
  const int64_t m = Small() ? 2 : 8192, n = Small() ? 64 : 4096, half = Small() ? 16 : 64;
  OnDevice<float> x(ManyFloats(m * n)), up(ManyFloats(m * n)), y(m * n),
      tables(ManyFloats(m * half));
  std::vector<int32_t> positions(m);
  for (int64_t r = 0; r < m; ++r) positions[r] = static_cast<int32_t>(r);
  OnDevice<int32_t> device_positions(positions);
  const auto numbers = static_cast<double>(m * n);
  Measure("rms_norm", 4 * 2 * numbers, 4 * numbers,
          [&] { CUDA_OK(cuda::RmsNorm(x.data(), up.data(), m, n, 1e-6f, y.data(), nullptr)); });
  Measure("swiglu", 4 * 3 * numbers, 0,
          [&] { CUDA_OK(cuda::SwiGlu(x.data(), up.data(), m * n, y.data(), nullptr)); });
  Measure("rope", 4 * 2 * numbers, 3 * numbers, [&] {
    CUDA_OK(cuda::Rope(x.data(), n, m, n / (2 * half), device_positions.data(), tables.data(),
                       tables.data(), 1.0f, half, nullptr));
  });
}

// Measures attention with one query in each of `count` sequences.
template <typename T>
void MeasureAttention(const std::string& name) {
  const int64_t count = Small() ? 2 : 256, positions = Small() ? 40 : 2048, d = Small() ? 16 : 128;
  const int64_t stride = KvHead<T>::BlockSize(d),
                per_query = (positions + kKvBlockTokens - 1) / kKvBlockTokens;
  std::vector<T> numbers(count * per_query * stride);
  if constexpr (sizeof(T) == 4) {
    numbers = ManyFloats(static_cast<int64_t>(numbers.size()));
  } else {
    const std::vector<float> wide = ManyFloats(static_cast<int64_t>(numbers.size()));
    BestDecoderOps().to_f16(wide.data(), static_cast<int64_t>(wide.size()), numbers.data());
  }

  OnDevice<T> pool(numbers);
  OnDevice<float> q(ManyFloats(count * d)), out(count * d);
  std::vector<int32_t> blocks(count * per_query);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  OnDevice<int32_t> device_blocks(blocks);
  std::vector<cuda::PagedQuery<T>> queries;
  for (int64_t i = 0; i < count; ++i)
    queries.push_back({{q.data() + i * d, out.data() + i * d, 0, positions},
                       {pool.data(), stride},
                       device_blocks.data() + i * per_query});

  OnDevice<cuda::PagedQuery<T>> on_device(queries);
  const double pairs = static_cast<double>(count * positions * d);
  Measure(name, 2 * pairs * sizeof(T), 4 * pairs,
          [&] { CUDA_OK(AttendOnDevice(on_device.data(), count, d)); });
}

CUDA_BENCH(AttentionSpeed) {
  MeasureAttention<float>("attend");
  MeasureAttention<uint16_t>("attend_f16");
}

}  // namespace
}  // namespace sluice
