#pragma once

#include <array>
#include <cstdint>

// Draws one token per row of logits by a Gumbel race: each token gets the sum of its scaled logit
// and random noise as score, and the best score wins. The noise depends only on (key, position,
// member, stream). Therefore a token never depends on the batch it was drawn in, on threads, or on
// where a trajectory was resumed.
//
// V: vocabulary. For the logits z [V] of a row, without its banned tokens:
//
//   z'_v = z_v / temperature
//   S     = the kept tokens: cut by top-k, then by top-p, then by min-p; all tokens without cuts
//   token = argmax over S of z'_v + g_v,  g_v = -log(-log1p(-w_v)),  w_v = (x_v + 1/2) / 2^32
//   lp    = z'_token - logsumexp over S of z'                     the behaviour log-prob, from the
//         same numbers
//
// Tokens are ordered by falling z', and by rising id where z' is equal. In this order top-k keeps
// the first k. Top-p keeps the shortest prefix whose share of the remaining mass is at least p.
// Min-p keeps the tokens that are at least min_p times as likely as the first. Masses are counted
// as integers in units of 2^-40 of the first token's mass, so that the order of summation does not
// matter.
//
// x_v is word (v mod 4) of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC'11) with key = the group's seed (low word first) and counter = (v / 4, position, member,
// stream). If scores are equal, the lowest id wins. At temperature 0: token = argmax z, lp = 0, no
// noise.
namespace sluice {

// One row to draw from. The pointers must stay valid during the call.
struct SampleRow {
  const float* logits = nullptr;  // [V]
  uint64_t key = 0;               // Seed of the group.
  uint32_t position = 0;  // Position of the token to draw, counted from the prompt's first token.
  // Number of the trajectory in its group.
  uint32_t member = 0;
  uint32_t stream = 0;    // 0 for the policy's own draw.
  float temperature = 1;  // >= 0
  // [banned_count] ids that may not be drawn; they are left out of the softmax too.
  const int32_t* banned = nullptr;
  int32_t banned_count = 0;
  int32_t top_k = 0;  // 0: no cut.
  double top_p = 1;   // (0, 1]; 1: no cut.
  float min_p = 0;    // [0, 1]; 0: no cut.
  // If not null: gets the set S, with rising ids; room for V. Not filled at temperature 0.
  int32_t* kept = nullptr;
};

struct SampleDraw {
  int32_t token = -1;  // -1: the row is invalid (NaN, +inf, or no finite logit is left).
  float logprob = 0;   // Natural log.
  int32_t kept = 0;    // Size of S, if the row has `kept`.
  bool operator==(const SampleDraw&) const = default;
};

// Returns one block of random numbers of Philox4x32-10.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Draws a token per row; this is the reference. All arithmetic is fp32, in an order that depends
// only on V; scalar, AVX2 and AVX-512 builds give the same bits. Thread-safe.
void SampleCpu(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws);

// The same without vector instructions beyond those of the build; tests compare the others with it.
void SampleCpuPortable(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws);

// Finds the most likely tokens of the distribution that `row` is drawn from, with the log-probs
// that a draw would give them. They are ordered from most to least likely, equal ones by id.
// Returns their number, at most `count` (at temperature 0, at most 1), or -1 if the row is invalid
// as in SampleDraw.
int32_t TopLogprobsCpu(const SampleRow& row, int64_t vocab, int32_t count, int32_t* ids,
                       float* logprobs);
// Returns the log-prob of `token`, which must be in S; NaN if the row is invalid.
float LogprobCpu(const SampleRow& row, int64_t vocab, int32_t token);

// The score of a target token, for the trainer, for a row of logits z [V] at `temperature` > 0.
// With z' = z / temperature:
//   logprob = z'_target - logsumexp z'    in the same bits as a draw of `target` without cuts
//   entropy = -sum over v of p_v log p_v,  p = exp(z' - logsumexp z')
// All three are NaN if the row is invalid.
struct TokenScore {
  float logprob = 0, entropy = 0, logsumexp = 0;
};
TokenScore ScoreCpu(const float* logits, int64_t vocab, float temperature, int32_t target);

// Draws on a GPU. `rows`, the pointers in them, `draws` and `workspace` are in device memory. The
// workspace has SampleCudaWorkspace() bytes, aligned to 8, whose contents do not matter; until the
// draws are done, no other call may use it. Works in the order of `stream` (a cudaStream_t) and
// does not synchronise. Returns the cudaError_t of the launch. Tokens and log-probs have the same
// bits as those of SampleCpu().
int SampleCuda(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws,
               void* workspace, void* stream);
int64_t SampleCudaWorkspace(int64_t row_count, int64_t vocab);

}  // namespace sluice
