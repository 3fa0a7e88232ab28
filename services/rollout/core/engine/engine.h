#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rl/version.h"

namespace sluice {
struct StagedWeights;  // common/weights: one verified version, ready to be activated.
class Tokenizer;       // common/tokenizer.
class Adapter;         // common/models.

// What an engine can promise. A job whose needs exceed it fails at start, by name.
struct EngineCaps {
  // Each token carries the version that sampled it; else the older one.
  bool exact_stamps = false;
  bool verifies = false;          // Checks the fingerprint of the weights it holds.
  bool in_flight_switch = false;  // Switches weights without ending running requests.
  bool position_seeds = false;    // Draws depend on seed, position and member alone.
  bool kept_sets = false;         // Reports the sets of top-p, top-k, min-p.
  bool routing = false;           // Reports the experts of each token.
  bool deterministic = false;     // Same numbers whatever the batch.
};

// How a token is chosen. Checked by CheckSampling().
struct SamplingParams {
  float temperature = 1;  // 0: the most likely token.
  // The shortest run of the most likely with this share; 0 or 1: all.
  double top_p = 1;
  uint32_t top_k = 0;       // 0: all.
  double min_p = 0;         // Those at least so many times as likely as the first.
  uint32_t max_tokens = 0;  // Of the answer, those of a resumed prefix included.
  uint32_t min_tokens = 0;  // Before so many no stop token is drawn.
  // Texts: tokens stand up to the one that completed it. As StopMatcher::Create.
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;  // Beside the model's own end tokens.
  bool ignore_eos = false;        // The model's own end tokens do not stop.
};

inline constexpr uint32_t kMaxTopLogprobs = 20;

// INVALID_ARGUMENT, by name: out of range; or, if `trainable`, what the trainer does not replay
// (temperature 0, top_p, top_k, min_p, min_tokens) or the verifiers do not see (stop texts).
absl::Status CheckSampling(const SamplingParams& sampling, bool trainable);

// Earlier classes go first. One of kIdle waits for as long as others want its place.
enum class RequestClass : uint8_t { kResumed = 0, kTrain = 1, kEval = 2, kApi = 3, kIdle = 4 };

struct Request {
  uint64_t id = 0;  // The caller's; unique among live requests.
  // Requests of one group share `prompt`, computed once and forked. 0: alone.
  uint64_t group = 0;
  std::shared_ptr<const std::vector<int32_t>> prompt;  // At least one token.
  // Tokens already known (a resumed prefix); their stamps stay with the caller.
  std::vector<int32_t> sampled;
  uint64_t seed = 0;  // The group's.
  uint32_t member = 0;
  SamplingParams sampling;
  RequestClass order = RequestClass::kTrain;
  int64_t target_step = 0;  // Earlier steps go first within a class.
  bool trainable = true;
  // Changes the model for this request; not of trainable ones. Members of a group have the same.
  std::shared_ptr<const Adapter> adapter;
  // What events carry beside the token; see TokenDetails. All of it costs time on the step thread.
  bool text = false;
  bool kept_sets = false;
  bool routing = false;
  bool raw_logprobs = false;
  uint32_t top_logprobs = 0;  // At most kMaxTopLogprobs.
  // Of the prompt's tokens too, all of one version; then it shares no prefix that others computed.
  bool prompt_logprobs = false;
  // Not -1: the answer is this one token, given and not drawn; `max_tokens` is 1.
  int32_t given = -1;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// What a request asked to be told with its tokens.
struct TokenDetails {
  // With `text`, or stop texts: what this token released, UTF-8, special tokens left out. Bytes
  // that may yet become a character or a stop text come with a later token; the last token releases
  // the rest. A stop text and what follows it never appear, nor does a stop token.
  std::string text;
  int32_t stop = -1;  // The stop text that ended the answer, its place in `stop`.
  // With `kept_sets`: the ids the draw was among, rising; empty where it was all of them.
  std::vector<int32_t> kept;
  // With `routing`, [layers, k]: the experts that the row went through which the token was drawn
  // from, rising in each layer; empty without a mixture of experts.
  std::vector<uint16_t> routing;
  float raw_logprob = 0;  // With `raw_logprobs`: before temperature, bans and cuts.
  // With `prompt_logprobs`, told with the first token: of the prompt's tokens behind its first,
  // among all tokens, at the temperature of the answer (1: raw, or where that is 0).
  std::vector<float> prompt_logprobs;
  std::vector<std::vector<TokenLogprob>> prompt_top;  // With `top_logprobs` too.
  // The most likely `top_logprobs`, of the distribution drawn from; with `raw_logprobs`, of the raw
  // one.
  std::vector<TokenLogprob> top;
};

enum class FinishReason : uint8_t { kNone = 0, kStop, kLength };

struct TokenEvent {
  uint64_t request = 0;
  uint32_t position = 0;  // From the prompt's first token.
  int32_t token = 0;
  // Behaviour log-prob, natural log, of the distribution drawn from.
  float logprob = 0;
  PolicyVersion version;                        // Whose logits it was drawn from.
  FinishReason finish = FinishReason::kNone;    // Not none: the request's last token.
  std::shared_ptr<const TokenDetails> details;  // Null unless the request asked for some.
};

enum class AbortReason : uint8_t { kCancelled, kLeaseLost, kDrain, kStop };

struct RequestFailure {
  uint64_t request = 0;
  absl::Status status;  // DATA_LOSS NONFINITE: the logits were not finite.
};

struct StepEvents {
  std::vector<TokenEvent> tokens;  // Each request's positions in order, once.
  std::vector<RequestFailure>
      failures;  // These requests have ended; tokens already reported stand.
  // Gave up their blocks for the second time, or again: better run elsewhere.
  std::vector<uint64_t> crowded_out;
  uint32_t rows = 0;          // Tokens computed.
  uint32_t prefill_rows = 0;  // Of these, known before the step.
  double seconds = 0;         // Filled in by who measures: the step loop.
};

enum class KvPolicy : uint8_t {
  kKeep,       // Running requests go on over keys and values of older versions.
  kRecompute,  // Running requests prefill again under the new version.
};

struct Activation {
  bool accepted = false;  // False: the old version serves on; `cause` says why.
  PolicyVersion version;  // Held after the call.
  std::string cause;
  std::vector<std::string> blame;  // Tensors whose digest differed.
  double seconds = 0;              // No token was drawn for so long.
};

struct EngineStats {
  uint32_t slots = 0;  // Requests that may run at once, now.
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t steps = 0;
  uint64_t tokens_generated = 0;
  uint64_t prompt_tokens_computed = 0;
  uint64_t prompt_tokens_forked = 0;  // Taken from a sibling.
  uint64_t prompt_tokens_cached = 0;  // Found in the prefix cache.
  uint64_t preemptions = 0;
  uint64_t nonfinite_rows = 0;
  uint64_t kv_tokens = 0;    // Room of the blocks that requests hold now, in tokens.
  uint64_t kv_capacity = 0;  // Of all blocks.
  PolicyVersion version;
};

// Samples answers by continuous batching. Called by the step thread alone; no call blocks on I/O.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineCaps& caps() const = 0;
  // Requests that may run at once; keys and values may hold fewer.
  virtual uint32_t slots() const = 0;
  virtual uint32_t max_context() const = 0;  // Tokens, prompt and answer.

  // For text and stop texts. Before the first request; outlives all of them.
  virtual void UseTokenizer(const Tokenizer* tokenizer) = 0;

  // INVALID_ARGUMENT: prompt and max_tokens can never fit, an id outside the vocabulary, or a
  // sampling rule that the trainer could not replay. FAILED_PRECONDITION: text or stop texts, and
  // no tokenizer. ALREADY_EXISTS: the id is in use.
  virtual absl::Status AddRequest(Request request) = 0;

  // Computes with so many threads from here on, between steps; their number changes no number. An
  // engine that computes elsewhere may ignore it.
  virtual void SetThreads(int threads) = 0;

  // One plan, one forward, one draw per sampling row. Without requests: no events, at once.
  // An error means that the engine is broken; each request it touched is lost.
  virtual absl::StatusOr<StepEvents> Step() = 0;

  // Takes effect before the next step. Tokens already reported stand. Unknown or ended: nothing
  // happens.
  virtual void Abort(uint64_t request, AbortReason reason) = 0;

  // Between steps. Takes the staged weights, recomputes the fingerprint over what it now computes
  // with, and only if that equals the staged one moves the version. Else the weights held before
  // are put back and the answer is not accepted. INVALID_ARGUMENT: another layout. INTERNAL: the
  // weights held before could not be put back; the engine must not step again.
  virtual absl::StatusOr<Activation> ActivateWeights(const StagedWeights& staged, KvPolicy kv) = 0;

  virtual PolicyVersion version() const = 0;
  virtual bool idle() const = 0;  // No request runs or waits.
  virtual EngineStats Stats() const = 0;
};

}  // namespace sluice
