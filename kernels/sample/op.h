#pragma once

#include <array>
#include <cstdint>

// Draws one token per row of logits by a Gumbel race whose noise is a function of (key, position,
// member, stream) alone: a token never depends on the batch it was drawn in, on threads, or on
// where a trajectory was resumed.
//
// V: vocabulary. Of a row's logits z [V], with its banned tokens left out,
//
//   z'_v = z_v / temperature
//   S     = top-k, of it top-p, of it min-p                       the kept set; without these: all
//   token = argmax over S of z'_v + g_v,  g_v = -log(-log1p(-w_v)),  w_v = (x_v + 1/2) / 2^32
//   lp    = z'_token - logsumexp over S of z'                     the behaviour log-prob, from the
//         same numbers
//
// In the order of z' falling, of equal ones the lower id first: top-k keeps the first k; top-p the
// shortest run from the start whose share of the mass that is left is at least p; min-p those at
// least min_p times as likely as the first. Shares are counted in units of 2^-40 of the first
// one's, in integers, so that no order of summation enters.
//
// x_v is word (v mod 4) of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC'11) with key = the group's seed (low word first) and counter = (v / 4, position, member,
// stream). Ties go to the lowest id. temperature 0: token = argmax z, lp = 0, no noise.
namespace sluice {

// One row to draw from. Pointers are borrowed for the call.
struct SampleRow {
  const float* logits = nullptr;  // [V]
  uint64_t key = 0;               // The group's seed.
  uint32_t position = 0;          // Of the token drawn, counted from the prompt's first token.
  uint32_t member = 0;
  uint32_t stream = 0;    // 0 for the policy's own draw.
  float temperature = 1;  // >= 0
  // [banned_count] ids that may not be drawn; they leave the softmax too.
  const int32_t* banned = nullptr;
  int32_t banned_count = 0;
  int32_t top_k = 0;  // 0: no cut.
  double top_p = 1;   // (0, 1]; 1: no cut.
  float min_p = 0;    // [0, 1]; 0: no cut.
  // Where not null: [V], gets S, ids rising. Not at temperature 0.
  int32_t* kept = nullptr;
};

struct SampleDraw {
  int32_t token = -1;  // -1: the row cannot be drawn from (NaN, +inf, or nothing finite left).
  float logprob = 0;   // Natural log.
  int32_t kept = 0;    // |S|, of a row that asked for it.
  bool operator==(const SampleDraw&) const = default;
};

// Philox4x32-10.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The reference. All sums and functions are fp32 with an order fixed by V alone; scalar, AVX2 and
// AVX-512 builds agree in bits. Thread-safe: no state.
void SampleCpu(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws);

// The same without vector instructions beyond the build's own: what the others are compared with.
void SampleCpuPortable(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws);

// The most likely tokens of the distribution that `row` is drawn from, most likely first, of equal
// ones the lower id, with their log-probs as a draw would give them. Returns how many there are, at
// most `count`; -1: as a draw's. At temperature 0: one.
int32_t TopLogprobsCpu(const SampleRow& row, int64_t vocab, int32_t count, int32_t* ids,
                       float* logprobs);
// That of `token`, which must be in S.
float LogprobCpu(const SampleRow& row, int64_t vocab, int32_t token);

// What a trainer asks of a row of logits z [V] at `temperature` > 0: with z' = z / temperature
//   logprob = z'_target - logsumexp z'    in the bits of a draw of `target` without cuts
//   entropy = -sum over v of p_v log p_v,  p = exp(z' - logsumexp z')
// NaN, all three, where the row cannot be drawn from.
struct TokenScore {
  float logprob = 0, entropy = 0, logsumexp = 0;
};
TokenScore ScoreCpu(const float* logits, int64_t vocab, float temperature, int32_t target);

// The same numbers on a GPU: `rows`, their pointers and `draws` are device memory. Enqueues on
// `stream` (a cudaStream_t) and does not synchronize. Returns the cudaError_t of the launch. Tokens
// equal SampleCpu's; log-probs too, in bits.
int SampleCuda(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws,
               void* stream);

}  // namespace sluice
