#include "kernels/decoder_grad/op.h"

#include <bit>
#include <limits>
#include <vector>

namespace sluice {
namespace {

#if defined(__x86_64__)
namespace avx512 {
#define SLUICE_TARGET \
  __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,prefer-vector-width=512")))
#include "kernels/decoder_grad/op_cpu.inc"
#undef SLUICE_TARGET
constexpr DecoderGradOps kOps = MakeOps("avx512");
}  // namespace avx512

namespace avx2 {
#define SLUICE_TARGET __attribute__((target("avx2,fma")))
#include "kernels/decoder_grad/op_cpu.inc"
#undef SLUICE_TARGET
constexpr DecoderGradOps kOps = MakeOps("avx2");
}  // namespace avx2
#endif

namespace base {
#define SLUICE_TARGET
#include "kernels/decoder_grad/op_cpu.inc"
#undef SLUICE_TARGET
constexpr DecoderGradOps kOps = MakeOps("base");
}  // namespace base

std::vector<const DecoderGradOps*> DetectKinds() {
  std::vector<const DecoderGradOps*> kinds;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("fma")) {
    kinds.push_back(&avx512::kOps);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kinds.push_back(&avx2::kOps);
#endif
  kinds.push_back(&base::kOps);
  return kinds;
}

}  // namespace

std::span<const DecoderGradOps* const> DecoderGradOpsKinds() {
  static const std::vector<const DecoderGradOps*>& kinds =
      *new std::vector<const DecoderGradOps*>(DetectKinds());
  return kinds;
}

}  // namespace sluice
