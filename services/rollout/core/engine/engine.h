#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rl/version.h"
#include "common/weights/weights_check.h"

namespace sluice {
struct StagedWeights;  // common/weights/staged.h
class Tokenizer;       // common/tokenizer/tokenizer.h
class Adapter;         // common/models/adapter.h

// What an engine can promise. A job that needs more than that fails at its start, and the error
// names the missing property.
struct EngineCaps {
  // A token carries exactly the version that sampled it. False: a token that is drawn while weights
  // change carries the older version.
  bool exact_stamps = false;
  bool verifies = false;          // Checks the fingerprint of the weights it computes with.
  bool in_flight_switch = false;  // Changes weights without ending running requests.
  bool position_seeds = false;    // Draws depend on seed, position and member alone.
  bool kept_sets = false;         // Reports which tokens top-k, top-p and min-p left to draw from.
  bool routing = false;           // Reports the experts that computed each token.
  bool deterministic = false;     // Results have the same bits whatever else is in the batch.
};

// How a token is chosen. CheckSampling() checks the values.
struct SamplingParams {
  float temperature = 1;  // 0: the most likely token.
  // Draws from the fewest most likely tokens that have this share together. 0 or 1: from all.
  double top_p = 1;
  uint32_t top_k = 0;  // Draws from the k most likely tokens. 0: from all.
  double min_p = 0;    // Draws from tokens at least min_p times as likely as the most likely one.
  // Most tokens of the answer. The tokens of a resumed prefix count.
  uint32_t max_tokens = 0;
  uint32_t min_tokens = 0;  // No stop token is drawn before the answer has this many tokens.
  // Stop texts. The answer's tokens end with the one that completed a stop text. Limits are those
  // of StopMatcher::Create().
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;  // Stop tokens in addition to the model's own end tokens.
  bool ignore_eos = false;        // The model's own end tokens do not end the answer.
};

inline constexpr uint32_t kMaxTopLogprobs = 20;

// INVALID_ARGUMENT: the named parameter is out of range; or `trainable` is set and the trainer
// cannot replay the parameter (temperature 0, top_p, top_k, min_p, min_tokens), or verifiers would
// score another text than the one that was cut (stop texts).
absl::Status CheckSampling(const SamplingParams& sampling, bool trainable);

// The scheduler runs lower classes first. However long a kIdle request waits, it never moves ahead
// of requests of other classes.
enum class RequestClass : uint8_t { kResumed = 0, kTrain = 1, kEval = 2, kApi = 3, kIdle = 4 };

struct Request {
  uint64_t id = 0;  // Chosen by the caller; unique among requests that have not ended.
  // Requests with the same group have equal prompts. One of them computes the prompt, and the
  // others share its keys and values. 0: the request is in no group.
  uint64_t group = 0;
  std::shared_ptr<const std::vector<int32_t>> prompt;  // At least one token.
  // Tokens of the answer that an earlier attempt sampled. The caller keeps their versions.
  std::vector<int32_t> sampled;
  // The version of the last of them. An engine in which answers end with the version that they
  // began with goes on with it if it holds it.
  std::optional<PolicyVersion> sampled_under;
  uint64_t seed = 0;    // Seed of the group.
  uint32_t member = 0;  // Number of the trajectory in its group.
  SamplingParams sampling;
  RequestClass order = RequestClass::kTrain;
  int64_t target_step = 0;  // Within a class, requests for earlier training steps run first.
  bool trainable = true;    // The trainer may train on the answer.
  // Changes the model for this request. Null: no change. Not allowed if `trainable` is set. All
  // members of a group have the same adapter.
  std::shared_ptr<const Adapter> adapter;
  // What token events carry in addition to the token; see TokenDetails. Each of these costs time on
  // the step thread.
  bool text = false;
  bool kept_sets = false;
  bool routing = false;
  bool raw_logprobs = false;
  uint32_t top_logprobs = 0;  // At most kMaxTopLogprobs.
  // Asks for the log-probs of the prompt's tokens too, all under one version. Such a request
  // computes its whole prompt itself: keys and values of other requests may be of other versions.
  bool prompt_logprobs = false;
  // If not -1, the answer is this one token. It is not drawn, only scored; `max_tokens` is 1.
  int32_t given = -1;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// What a request asked to be told with its tokens. Names in backquotes are fields of Request or of
// its SamplingParams.
struct TokenDetails {
  // With `text` or stop texts: the UTF-8 text that has become certain with this token, without
  // special tokens. Bytes that may yet become a character or a stop text come with a later token;
  // the last token brings the rest. A stop text and what follows it never appear, nor does a stop
  // token.
  std::string text;
  int32_t stop = -1;  // Index in `stop` of the stop text that ended the answer; -1: none did.
  // With `kept_sets`: ids of the tokens that top-k, top-p and min-p left to draw from, in rising
  // order. Empty if they left all tokens.
  std::vector<int32_t> kept;
  // With `routing`: [layers, k], the experts that computed the row whose logits the token was drawn
  // from, in rising order in each layer. Empty if the model is no mixture of experts.
  std::vector<uint16_t> routing;
  float raw_logprob = 0;  // With `raw_logprobs`: before temperature, banned tokens and cuts.
  // With `prompt_logprobs`, in the event of the answer's first token: [prompt - 1], the log-probs
  // of the prompt's tokens from the second on. They are over the whole vocabulary, at the answer's
  // temperature, or at 1 with `raw_logprobs` or if that temperature is 0.
  std::vector<float> prompt_logprobs;
  // With `prompt_logprobs` and `top_logprobs`: the most likely tokens at each of these positions.
  std::vector<std::vector<TokenLogprob>> prompt_top;
  // With `top_logprobs`: the most likely tokens of the distribution that was drawn from; with
  // `raw_logprobs`, of the raw distribution.
  std::vector<TokenLogprob> top;
};

enum class FinishReason : uint8_t { kNone = 0, kStop, kLength };

struct TokenEvent {
  uint64_t request = 0;
  uint32_t position = 0;  // Counted from the prompt's first token.
  int32_t token = 0;
  // Behaviour log-prob: natural log of the token's probability in the distribution that was drawn
  // from.
  float logprob = 0;
  PolicyVersion version;                        // Version of the weights that gave the logits.
  FinishReason finish = FinishReason::kNone;    // If not kNone, this is the request's last token.
  std::shared_ptr<const TokenDetails> details;  // Null unless the request asked for some.
};

// Why a request is aborted. The native engine treats all reasons alike.
enum class AbortReason : uint8_t { kCancelled, kLeaseLost, kDrain, kStop };

struct RequestFailure {
  uint64_t request = 0;
  absl::Status status;    // DATA_LOSS NONFINITE: the logits were not finite.
  PolicyVersion version;  // With NONFINITE: that of the weights that gave them.
};

// What one step did. A row is one token that was computed in the step.
struct StepEvents {
  std::vector<TokenEvent> tokens;  // A request's positions come in order, each once.
  // These requests have ended; the tokens that they reported before stay valid.
  std::vector<RequestFailure> failures;
  // Requests that were preempted in this step, and not for the first time. The KV cache has too
  // little room for them, so they had better run on another worker.
  std::vector<uint64_t> crowded_out;
  uint32_t rows = 0;
  uint32_t prefill_rows = 0;  // Rows from which no token was drawn.
  double seconds = 0;         // Duration of the step; the step loop measures it.
};

// What running requests do that go on with a new version.
enum class KvPolicy : uint8_t {
  kKeep,       // They go on over keys and values of older versions.
  kRecompute,  // They prefill again under the new version.
};

// What an engine found in its memory instead of the weights of its version.
struct WeightDamage {
  std::string cause;
  std::vector<std::string> tensors;  // Names of those that differ.
  // Tokens that were sampled since these tensors were last found right. Their stamps name versions
  // that they were perhaps not sampled with.
  uint64_t suspect_tokens = 0;
};

struct Activation {
  bool accepted = false;  // False: `cause` says why.
  // The engine's version after the call. If it was not accepted, the old one.
  PolicyVersion version;
  std::string cause;
  std::vector<std::string> blame;  // Names of tensors whose fingerprints differ.
  // Set if the engine holds the weights of no version any more. It is not accepted then.
  std::optional<WeightDamage> damage;
  double seconds = 0;         // Time during which no token could be drawn.
  double verify_seconds = 0;  // The part of it in which weights were read again.
};

struct EngineStats {
  uint32_t slots = 0;  // Requests that may run at once now; the engine may lower it for a while.
  uint32_t running = 0;
  uint32_t waiting = 0;
  // Counters since the engine was made.
  uint64_t steps = 0;
  uint64_t tokens_generated = 0;
  uint64_t prompt_tokens_computed = 0;
  uint64_t prompt_tokens_forked = 0;  // Their keys and values came from a member of the group.
  uint64_t prompt_tokens_cached = 0;  // Their keys and values came from the prefix cache.
  uint64_t preemptions = 0;
  uint64_t nonfinite_rows = 0;
  // State of the KV cache now.
  uint64_t kv_tokens = 0;    // Room of the blocks that requests hold, in tokens.
  uint64_t kv_capacity = 0;  // Room of all blocks, in tokens.
  PolicyVersion version;
  // Versions whose weights it holds now: `version`, and those that answers end with.
  uint32_t versions = 1;
  PolicyVersion oldest_version;  // The oldest of them.
  uint32_t oldest_answers = 0;   // Answers that end with it, if it is not `version`.
  bool room_for_version = true;  // Whether the weights of another version may be prepared now.
};

// Samples answers by continuous batching. Only the step thread calls it. No call blocks on I/O.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineCaps& caps() const = 0;
  // Most requests that may run at once. Fewer run while the KV cache has no room for more.
  virtual uint32_t slots() const = 0;
  virtual uint32_t max_context() const = 0;  // Most tokens of prompt and answer together.

  // Sets the tokenizer for texts and stop texts. Call it before the first request; `tokenizer`
  // outlives all requests.
  virtual void UseTokenizer(const Tokenizer* tokenizer) = 0;

  // INVALID_ARGUMENT: prompt and max_tokens can never fit, a token is outside the vocabulary, or
  // CheckSampling() refuses the parameters.
  // FAILED_PRECONDITION: the request needs a tokenizer, and there is none.
  // ALREADY_EXISTS: the id is in use.
  virtual absl::Status AddRequest(Request request) = 0;

  // Sets the number of threads that later steps compute with. It changes no result. An engine that
  // computes in another process may ignore it. Call it between steps.
  virtual void SetThreads(int threads) = 0;

  // Plans a step, computes it, and draws a token for each row that is at the end of its known
  // tokens. Returns no events, at once, if there are no requests. An error means that the engine is
  // broken; each request that it has is lost.
  virtual absl::StatusOr<StepEvents> Step() = 0;

  // Ends a request before the next step. The tokens that it reported stay valid. Does nothing if
  // the request is unknown or has ended.
  virtual void Abort(uint64_t request, AbortReason reason) = 0;

  // Does what an activation of *staged can do before the pause, and puts it into staged->prepared.
  // May run on another thread during Step(), but not while weights are activated; and no other
  // weights may be activated before these. If it fails, ActivateWeights() says so. Weights with
  // tensors or a delta need EngineStats::room_for_version, from here to their activation.
  virtual void PrepareWeights(StagedWeights* staged) = 0;

  // Changes the weights to the staged ones, and the version if the weights that the engine then
  // holds have the staged fingerprint. If they do not, the engine puts back what it had before, and
  // the result has `accepted` false. Weights that were not prepared are prepared here, which makes
  // the pause longer. Call it between steps.
  // INVALID_ARGUMENT: the weights have another layout than the model's.
  virtual absl::StatusOr<Activation> ActivateWeights(const StagedWeights& staged, KvPolicy kv) = 0;

  // Whether all weights were read again, and found right, since the last activation.
  virtual bool verified() const = 0;
  // Reads a part of the weights again; after a few calls verified() is true. Returns what is wrong.
  // Call it between steps.
  virtual std::optional<WeightDamage> VerifyPart() = 0;
  // Whether the weights in memory were found to be those of no version. The engine keeps its
  // requests, but must not step until a whole version is activated.
  virtual bool damaged() const = 0;
  // Reads all weights again. Puts what is wrong into *damage, unless damaged() was true before.
  // Call it between steps.
  virtual WeightsCheck CheckWeights(std::optional<WeightDamage>* damage) = 0;

  virtual PolicyVersion version() const = 0;
  virtual bool idle() const = 0;  // True if no request runs or waits.
  virtual EngineStats Stats() const = 0;
};

}  // namespace sluice
