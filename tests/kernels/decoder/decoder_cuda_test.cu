#include <cuda_runtime.h>

#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decoder/op_cuda.h"

namespace sluice {
namespace {

// A copy on the device.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : count_(host.size()) {
    cudaMalloc(&data_, count_ * sizeof(T));
    cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() { return data_; }
  std::vector<T> Back() const {
    std::vector<T> host(count_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

 private:
  const size_t count_;
  T* data_ = nullptr;
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

std::vector<float> Random(uint32_t seed, int64_t n) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<uint16_t> Bf16(const std::vector<float>& x) {
  std::vector<uint16_t> y(x.size());
  BestDecoderOps().to_bf16(x.data(), static_cast<int64_t>(x.size()), y.data());
  return y;
}

class DecoderCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device";
  }
  const DecoderOps& ops_ = BestDecoderOps();  // Must be a kind with fused multiply-add.
};

TEST_F(DecoderCudaTest, ProductsHaveTheBitsOfTheCpu) {
  for (const int64_t m : {1, 5, 70}) {
    const int64_t n = 40, k = 66;
    const std::vector<float> x = Random(1, m * k), w = Random(2, 2 * RoundUpToLanes(n) * k);
    // As if packed: any numbers will do.
    const std::vector<uint16_t> narrow_x = Bf16(x), narrow_w = Bf16(w);
    std::vector<float> y(m * n), gated(m * n), narrow(m * n);
    std::vector<uint16_t> narrow_gated(m * n);
    OnDevice<float> dx(x), dw(w), dy(y), dgated(gated), dnarrow(narrow);
    OnDevice<uint16_t> dnx(narrow_x), dnw(narrow_w), dng(narrow_gated);
    ops_.gemm(x.data(), k, w.data(), m, n, k, y.data(), n, false);
    ops_.gate_up(x.data(), k, w.data(), m, n, k, gated.data(), n);
    ops_.gemm_bf16(narrow_x.data(), k, narrow_w.data(), m, n, k, narrow.data(), n, true);
    ops_.gate_up_bf16(narrow_x.data(), k, narrow_w.data(), m, n, k, narrow_gated.data(), n);
    ASSERT_EQ(cuda::Gemm(dx.data(), k, dw.data(), m, n, k, dy.data(), n, false, nullptr),
              cudaSuccess);
    ASSERT_EQ(cuda::GateUp(dx.data(), k, dw.data(), m, n, k, dgated.data(), n, nullptr),
              cudaSuccess);
    ASSERT_EQ(cuda::GemmBf16(dnx.data(), k, dnw.data(), m, n, k, dnarrow.data(), n, true, nullptr),
              cudaSuccess);
    ASSERT_EQ(cuda::GateUpBf16(dnx.data(), k, dnw.data(), m, n, k, dng.data(), n, nullptr),
              cudaSuccess);
    EXPECT_TRUE(SameBits(dy.Back(), y)) << m << " rows";
    EXPECT_TRUE(SameBits(dgated.Back(), gated)) << m << " rows";
    EXPECT_TRUE(SameBits(dnarrow.Back(), narrow)) << m << " rows";
    EXPECT_TRUE(SameBits(dng.Back(), narrow_gated)) << m << " rows";
  }
}

TEST_F(DecoderCudaTest, NormHasTheBitsOfTheCpu) {
  const int64_t m = 3, n = 77;
  const std::vector<float> x = Random(1, m * n), weight = Random(2, n);
  std::vector<float> y(m * n);
  OnDevice<float> dx(x), dweight(weight), dy(y);
  for (int64_t r = 0; r < m; ++r) ops_.rms_norm(&x[r * n], weight.data(), n, 1e-6f, &y[r * n]);
  ASSERT_EQ(cuda::RmsNorm(dx.data(), dweight.data(), m, n, 1e-6f, dy.data(), nullptr), cudaSuccess);
  EXPECT_TRUE(SameBits(dy.Back(), y));
}

template <typename T>
void CheckAttention(const DecoderOps& ops, int64_t positions, int64_t begin, int64_t d) {
  const int64_t stride = KvHead<T>::BlockSize(d),
                count = (positions + kKvBlockTokens - 1) / kKvBlockTokens;
  std::vector<T> pool(count * stride);
  std::vector<int32_t> blocks(count);
  for (int64_t i = 0; i < count; ++i) blocks[i] = static_cast<int32_t>(count - 1 - i);
  const std::vector<float> q = Random(1, d), k = Random(2, positions * d),
                           v = Random(3, positions * d);
  for (int64_t p = 0; p < positions; ++p) {
    StoreKeyValue({pool.data(), stride}, blocks[p / kKvBlockTokens], p % kKvBlockTokens, d,
                  &k[p * d], &v[p * d]);
  }
  std::vector<float> out(d);
  OnDevice<float> dq(q), dout(out);
  OnDevice<T> dpool(pool);
  OnDevice<int32_t> dblocks(blocks);
  const AttentionQuery query{q.data(), out.data(), begin, positions};
  OnDevice<cuda::PagedQuery<T>> queries(
      {{{dq.data(), dout.data(), begin, positions}, {dpool.data(), stride}, dblocks.data()}});
  if constexpr (sizeof(T) == 4) {
    ops.attend(&query, 1, {pool.data(), stride}, blocks.data(), d);
    ASSERT_EQ(cuda::Attend(queries.data(), 1, d, nullptr), cudaSuccess);
  } else {
    ops.attend_f16(&query, 1, {pool.data(), stride}, blocks.data(), d);
    ASSERT_EQ(cuda::AttendF16(queries.data(), 1, d, nullptr), cudaSuccess);
  }
  EXPECT_TRUE(SameBits(dout.Back(), out))
      << positions << " positions from " << begin << ", D " << d;
}

TEST_F(DecoderCudaTest, AttentionHasTheBitsOfTheCpu) {
  for (const int64_t d : {6, 64, 160}) {
    for (const int64_t positions : {1, 33, 128, 300}) {
      for (const int64_t begin : {int64_t{0}, positions - 1, positions / 2}) {
        CheckAttention<float>(ops_, positions, begin, d);
        CheckAttention<uint16_t>(ops_, positions, begin, d);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
