#include "services/rollout/core/eval/eval.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/data/dataset.h"
#include "common/prompt/prompt.h"
#include "services/rollout/core/eval/pass_at_k.h"

namespace sluice {
namespace {

constexpr char kSource[] = "eval";
// While so many rows for each thread wait for scores, no more are sampled.
constexpr size_t kMostUnscored = 8;
// How long scores are awaited between two looks at EvalOptions::cancelled.
constexpr absl::Duration kAwaitScores = absl::Milliseconds(100);

// Returns the mean of `values`, which must not be empty. It sorts them first, so that the order in
// which answers ended does not change a bit of the sum.
double Mean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// One evaluation under way.
class Evaluation {
 public:
  Evaluation(const EvalOptions& options, const EvalScorer& score, MadeEngine made,
             std::unique_ptr<PromptRenderer> renderer, Dataset data)
      : options_(options),
        renderer_(std::move(renderer)),
        made_(std::move(made)),
        data_(std::move(data)),
        scoring_(options.scoring_threads, &score, options.whole_rows) {
    made_.engine->UseTokenizer(&renderer_->tokenizer());
  }
  ~Evaluation() {
    if (options_.stop_scoring) options_.stop_scoring();
  }

  absl::StatusOr<EvalResult> Run() {
    const uint64_t left = data_.rows() - options_.first_row;
    const uint64_t end =
        options_.first_row + (options_.rows == 0 ? left : std::min(left, options_.rows));

    // The engine gets twice as many requests as it has slots, so that a slot that comes free finds
    // one waiting.
    const absl::Duration start = Clock::Real()->Monotonic();
    uint64_t row = options_.first_row;
    while (row < end || !made_.engine->idle() || scoring_.waiting() > 0) {
      while (row < end && HasRoomForRow()) SLUICE_RETURN_IF_ERROR(AddRow(row++));
      if (options_.cancelled && options_.cancelled())
        return absl::CancelledError("the evaluation was cancelled");
      if (made_.engine->idle()) scoring_.Await(kAwaitScores);
      else SLUICE_RETURN_IF_ERROR(Step());
      scoring_.Collect();
    }

    result_.seconds = absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start);
    if (result_.rows == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          options_.data_path, ": of the ", end - options_.first_row, " rows asked for, ",
          result_.too_long, " are too long; a prompt has room for ", MaxPrompt(), " tokens"));
    }

    if (!row_means_.empty()) {
      result_.score_mean = Mean(row_means_);
      result_.score_interval = BootstrapInterval(std::move(row_means_), options_.seed);
    }
    for (const uint32_t k : options_.pass_k) {
      if (passes_[k].empty()) continue;
      // Rows end in any order, and sums of floats depend on it.
      std::sort(passes_[k].begin(), passes_[k].end());
      result_.pass_interval[k] = WilsonInterval(passes_[k]);
      result_.pass[k] = Mean(std::move(passes_[k]));
    }

    std::sort(result_.kept.begin(), result_.kept.end(),
              [](const EvalAnswer& a, const EvalAnswer& b) {
                return std::tie(a.row, a.sample) < std::tie(b.row, b.sample);
              });
    return std::move(result_);
  }

 private:
  // A row whose answers have not all ended, or are being scored.
  struct Row {
    uint64_t number = 0;
    uint32_t open = 0;  // Answers that have not ended.
    std::shared_ptr<const RenderedPrompt> prompt;
    std::vector<EvalText> answers;  // By sample.
  };
  // An answer that has not ended.
  struct Open {
    uint32_t sample = 0;
    std::shared_ptr<Row> row;
    std::vector<int32_t> tokens;
  };

  bool HasRoomForRow() const {
    const bool scores_wait = options_.scoring_threads > 0 &&
                             scoring_.waiting() >= kMostUnscored * options_.scoring_threads;
    return open_.size() < 2ull * made_.engine->slots() && !scores_wait;
  }

  // Returns the most tokens of a prompt. The context must have room for one more, the answer's.
  uint32_t MaxPrompt() const {
    const uint32_t room = made_.engine->max_context() - 1;
    return options_.max_prompt == 0 ? room : std::min(options_.max_prompt, room);
  }

  absl::Status AddRow(uint64_t row) {
    absl::StatusOr<RenderedPrompt> rendered = renderer_->Render(kSource, data_.json(row));
    if (!rendered.ok())
      return Annotate(rendered.status(), absl::StrCat(options_.data_path, ", row ", row));
    const auto prompt = std::make_shared<const RenderedPrompt>(*std::move(rendered));
    const uint32_t tokens = static_cast<uint32_t>(prompt->tokens.size());
    if (tokens > MaxPrompt()) {
      ++result_.too_long;
      return absl::OkStatus();
    }

    // The engine's group 0 means no group, so the row's group is its number plus 1.
    ++result_.rows;
    const auto added = std::make_shared<Row>(
        Row{.number = row, .open = options_.samples, .prompt = prompt, .answers = {}});
    added->answers.resize(options_.samples);
    for (uint32_t sample = 0; sample < options_.samples; ++sample) {
      Request request{.id = ++last_id_,
                      .group = row + 1,
                      .prompt = {prompt, &prompt->tokens},
                      .seed = GroupSeed(options_.seed, row),
                      .member = sample,
                      .sampling = options_.sampling,
                      .order = RequestClass::kEval,
                      .trainable = false};
      request.sampling.max_tokens =
          std::min(request.sampling.max_tokens, made_.engine->max_context() - tokens);
      open_[last_id_] = {.sample = sample, .row = added, .tokens = {}};
      SLUICE_RETURN_IF_ERROR(made_.engine->AddRequest(std::move(request)));
    }
    return absl::OkStatus();
  }

  absl::Status Step() {
    SLUICE_ASSIGN_OR_RETURN(const StepEvents events, made_.engine->Step());
    if (!events.failures.empty()) return events.failures.front().status;
    for (const TokenEvent& event : events.tokens) TakeToken(event);
    return absl::OkStatus();
  }

  void TakeToken(const TokenEvent& event) {
    const auto it = open_.find(event.request);
    Open& open = it->second;
    ++result_.tokens;
    open.tokens.push_back(event.token);
    if (event.finish == FinishReason::kNone) return;

    const bool truncated = event.finish == FinishReason::kLength;
    result_.truncated += truncated;
    const std::shared_ptr<Row> row = open.row;
    row->answers[open.sample] = {renderer_->AnswerText(open.tokens), truncated};
    open_.erase(it);
    if (--row->open > 0) return;
    scoring_.Score(row->answers, std::string(data_.json(row->number)),
                   [this, row](const RowScores& scores) { TakeScores(*row, scores); });
  }

  void TakeScores(const Row& row, const RowScores& scores) {
    SLUICE_CHECK(scores.verdicts.size() == row.answers.size());
    uint32_t scored = 0, passed = 0;
    double sum = 0;
    for (uint32_t sample = 0; sample < row.answers.size(); ++sample) {
      const absl::StatusOr<EvalVerdict>& verdict = scores.verdicts[sample];
      if (verdict.ok()) {
        ++scored;
        sum += verdict->score;
        passed += verdict->passes;
      } else {
        CountUnscorable({row.number, sample}, verdict.status());
      }
      if (row.number >= options_.first_row + options_.keep) continue;
      result_.kept.push_back({.row = row.number,
                              .sample = sample,
                              .messages = row.prompt->messages,
                              .text = row.answers[sample].text,
                              .score = verdict.ok() ? verdict->score : 0,
                              .truncated = row.answers[sample].truncated});
    }

    result_.answers += scored;
    if (scored > 0) {
      row_means_.push_back(sum / scored);
      result_.generations.insert(scores.generation);
    }
    for (const uint32_t k : options_.pass_k) {
      if (scored >= k) passes_[k].push_back(PassAtK(scored, passed, k));
    }
  }

  // `answer`: its row and sample.
  void CountUnscorable(std::pair<uint64_t, uint32_t> answer, const absl::Status& why) {
    if (result_.unscorable++ > 0 && answer > first_unscorable_) return;
    first_unscorable_ = answer;
    result_.first_unscorable = std::string(why.message());
  }

  const EvalOptions& options_;
  const std::unique_ptr<PromptRenderer> renderer_;
  const MadeEngine made_;
  const Dataset data_;
  absl::flat_hash_map<uint64_t, Open> open_;
  uint64_t last_id_ = 0;
  EvalResult result_;
  std::pair<uint64_t, uint32_t> first_unscorable_;  // Row and sample, if there is one.
  std::vector<double> row_means_;                   // Mean score of each row that has one.
  std::map<uint32_t, std::vector<double>> passes_;  // By k: pass@k of each row.
  RowScoring scoring_;  // Destroyed first: that waits for calls of the scorer.
};

}  // namespace

absl::StatusOr<EvalResult> Evaluate(const EvalOptions& options, const EvalScorer& score) {
  SLUICE_RETURN_IF_ERROR(CheckSampling(options.sampling, /*trainable=*/false));
  if (options.samples == 0) return absl::InvalidArgumentError("samples is 0; wanted: at least 1");
  for (const uint32_t k : options.pass_k) {
    if (k == 0 || k > options.samples)
      return absl::InvalidArgumentError(absl::StrCat("pass@", k, " needs k in 1..", options.samples,
                                                     ", the answers per row (--samples)"));
  }

  SLUICE_ASSIGN_OR_RETURN(Dataset data, ReadDataset({.name = kSource,
                                                     .path = options.data_path,
                                                     .fields = options.fields,
                                                     .check_prompts = true,
                                                     .bad_row_hint = options.bad_row_hint}));
  if (options.first_row >= data.rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.data_path, " has ", data.rows(), " rows, 0 to ", data.rows() - 1,
                     "; the first row asked for is ", options.first_row));
  }

  SLUICE_ASSIGN_OR_RETURN(MadeEngine made, MakeEngine(options.engine));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PromptRenderer> renderer,
                          PromptRenderer::Load(made.model, options.chat_template,
                                               {{kSource, options.format, options.fields}}));

  // Weights that the caller gives are activated as in training, so their fingerprint is checked.
  EvalResult given{.fingerprint = made.fingerprint, .ignored = made.model.config.ignored};
  if (options.weights) {
    SLUICE_ASSIGN_OR_RETURN(const StagedWeights staged, options.weights(made.layout));
    SLUICE_ASSIGN_OR_RETURN(const Activation activation,
                            made.engine->ActivateWeights(staged, KvPolicy::kKeep));
    if (!activation.accepted)
      return absl::DataLossError(
          absl::StrCat("version ", staged.version.str(), ": ", activation.cause));
    given.version = activation.version;
    given.fingerprint = staged.state;
  }

  SLUICE_ASSIGN_OR_RETURN(
      EvalResult result,
      Evaluation(options, score, std::move(made), std::move(renderer), std::move(data)).Run());
  result.version = given.version;
  result.fingerprint = given.fingerprint;
  result.ignored = std::move(given.ignored);
  return result;
}

}  // namespace sluice
