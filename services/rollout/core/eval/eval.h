#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/weights/staged.h"
#include "services/rollout/core/engine/registry.h"
#include "services/rollout/core/eval/interval.h"
#include "services/rollout/core/eval/row_scoring.h"

namespace sluice {

struct EvalOptions {
  EngineSpec engine;                    // The model.
  std::string chat_template = "model";  // "model", "none" or the path of a file.
  // Format of the prompts if there is no template. Empty: the prompt is used as it is.
  std::string format;
  // File of JSON lines. Each line has a prompt that is not empty: a text or a list of messages.
  std::string data_path;
  // Column by the name that it gets in the row; `prompt` must be among the names.
  std::map<std::string, std::string> fields;
  uint64_t first_row = 0;
  uint64_t rows = 0;                   // Number of rows; 0: all from first_row on.
  uint32_t samples = 1;                // Answers per row.
  std::vector<uint32_t> pass_k = {1};  // Each k to compute pass@k for; at most `samples`.
  SamplingParams sampling{.temperature = 0, .max_tokens = 256};
  // Most tokens of a prompt; rows with longer prompts are left out. 0: as many as the context has
  // room for.
  uint32_t max_prompt = 0;
  // Row r is a group with the seed GroupSeed(seed, r); its sample m draws as member m.
  uint64_t seed = 1;
  // Threads on which the scorer runs, beside the sampling; for scorers that wait for others. 0: it
  // runs between two steps of sampling.
  uint32_t scoring_threads = 0;
  // Whether the scorer must get all answers to a row at once, also when it is asked again: a reward
  // of groups.
  bool whole_rows = false;
  uint32_t keep = 10;  // The answers to the first `keep` rows are returned.
  // Tells people in an error what to do about a malformed line.
  const char* bad_row_hint =
      "mend the line, or take it out; --prompt, --answer and --field name the columns";
  // Called before each step, and often while scores are awaited. If it returns true, the evaluation
  // ends with CANCELLED, once calls of the scorer have returned. May be empty.
  std::function<bool()> cancelled;
  // Called when no more scores are wanted, also after an error: calls of the scorer are to end
  // soon, as the evaluation waits for them. May be empty.
  std::function<void()> stop_scoring;
  // Called once the model is loaded. Returns the weights to evaluate, which must have `layout`.
  // Empty: the weights of the model directory are evaluated.
  std::function<absl::StatusOr<StagedWeights>(absl::Span<const TensorSpec> layout)> weights;
};

struct EvalAnswer {
  uint64_t row = 0;
  uint32_t sample = 0;
  std::string messages;  // The prompt, as JSON.
  std::string text;
  double score = 0;
  bool truncated = false;  // The answer ended because it had max_tokens.
};

struct EvalResult {
  uint64_t rows = 0;      // Rows that were answered.
  uint64_t too_long = 0;  // Rows left out because of max_prompt.
  uint64_t answers = 0;   // Answers that got a verdict.
  uint64_t unscorable = 0;
  uint64_t truncated = 0;
  uint64_t tokens = 0;  // Tokens of all answers.
  // mean@k, with k = samples: the mean over rows of the mean score of a row's answers with a
  // verdict, and its interval (BootstrapInterval). Nothing: fewer than two rows have a mean.
  double score_mean = 0;
  std::optional<Interval> score_interval;
  // pass@k by k: the mean over rows with at least k answers that got a verdict (pass_at_k.h), and
  // its interval (WilsonInterval).
  std::map<uint32_t, double> pass;
  std::map<uint32_t, Interval> pass_interval;
  std::set<uint32_t> generations;  // Of the rewards that scored.
  PolicyVersion version;           // Version of EvalOptions::weights; 0:0 if that is empty.
  Fingerprint fingerprint;         // Fingerprint of the weights that answered.
  double seconds = 0;              // Time spent on sampling and scoring.
  // Error of the first answer without a verdict, in the order of rows and samples.
  std::string first_unscorable;
  // Keys of config.json that have no effect here (ModelConfig::ignored).
  std::vector<std::string> ignored;
  std::vector<EvalAnswer> kept;  // Ordered by row, then by sample.
};

// Samples `samples` answers to each row (at temperature 0 the most likely tokens) and scores them,
// row by row. It keeps the engine's slots full. Except for `seconds`, the result does not depend on
// their number, nor on that of the threads. Errors are those of the model, the weights or the file.
// INVALID_ARGUMENT: no row fits, the file ends before first_row, or a k is out of range.
absl::StatusOr<EvalResult> Evaluate(const EvalOptions& options, const EvalScorer& score);

}  // namespace sluice
