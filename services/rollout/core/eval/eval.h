#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/weights/staged.h"
#include "services/rollout/core/engine/registry.h"

namespace sluice {

struct EvalOptions {
  EngineSpec engine;                    // The model.
  std::string chat_template = "model";  // "model", "none" or a file.
  // Of prompts where there is no template; empty: the prompt as it is.
  std::string format;
  // JSON lines, each with a prompt: a text or a list of messages, not empty.
  std::string data_path;
  // Name in the row -> column; `prompt` must be among them.
  std::map<std::string, std::string> fields;
  uint64_t first_row = 0;
  uint64_t rows = 0;                   // 0: all from first_row on.
  uint32_t samples = 1;                // Answers per row.
  std::vector<uint32_t> pass_k = {1};  // For which pass@k is told; each at most `samples`.
  SamplingParams sampling{.temperature = 0, .max_tokens = 256};
  // Tokens; longer prompts are left out. 0: what the context has room for.
  uint32_t max_prompt = 0;
  // Row r draws with GroupSeed(seed, r), sample m as its member m.
  uint64_t seed = 1;
  uint32_t keep = 10;  // Answers returned, from the first rows.
  // What to do about a line that is no row, for people.
  const char* bad_row_hint =
      "mend the line, or take it out; --prompt, --answer and --field name the columns";
  // Asked before each step; true ends the evaluation with CANCELLED. Empty: nothing ends it.
  std::function<bool()> cancelled;
  // Asked for the weights to answer with once the model is there, whose layout they must have.
  // Empty: the directory's own.
  std::function<absl::StatusOr<StagedWeights>(const TensorSet& layout)> weights;
};

struct EvalVerdict {
  double score = 0;
  bool passes = false;  // Counts for pass@k.
};

// The verdict on one answer, or, as an error, why it has none (the row's fault).
using EvalScorer = std::function<absl::StatusOr<EvalVerdict>(absl::string_view text, bool truncated,
                                                             absl::string_view row_json)>;

struct EvalAnswer {
  uint64_t row = 0;
  uint32_t sample = 0;
  std::string messages;  // The prompt, as JSON.
  std::string text;
  double score = 0;
  bool truncated = false;  // Ended by max_tokens.
};

struct EvalResult {
  uint64_t rows = 0;      // Sampled.
  uint64_t too_long = 0;  // Rows left out.
  uint64_t answers = 0;   // Scored.
  uint64_t unscorable = 0;
  uint64_t truncated = 0;
  uint64_t tokens = 0;    // Sampled.
  double score_mean = 0;  // Over scored answers.
  // pass@k by k: mean over the rows with at least k scored answers (eval/pass_at_k.h).
  std::map<uint32_t, double> pass;
  PolicyVersion version;         // Of EvalOptions::weights; 0:0 without.
  Fingerprint fingerprint;       // Of the weights that answered.
  double seconds = 0;            // Of sampling.
  std::string first_unscorable;  // Why.
  // Keys of config.json that were not acted on (ModelConfig::ignored).
  std::vector<std::string> ignored;
  std::vector<EvalAnswer> kept;
};

// Samples (temperature 0: greedily) an answer to each row, `samples` times, and scores them. The
// engine's slots are kept full; the result does not depend on how many there are. Errors: the
// model's, the weights' or the file's; INVALID_ARGUMENT: no row fits, the file ends before
// first_row, or a k is out of range.
absl::StatusOr<EvalResult> Evaluate(const EvalOptions& options, const EvalScorer& score);

}  // namespace sluice
