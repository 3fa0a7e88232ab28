#include "services/rollout/evaluation.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "services/rollout/core/eval/local_scorer.h"

namespace sluice::rollout {
namespace {

// Rows that wait for reward daemons at a time. Each daemon bounds how many it scores at a time.
constexpr uint32_t kRemoteRows = 16;

// Returns `share` of `count`, rounded down, but at least 1.
uint32_t ShareOf(uint32_t count, double share) {
  return std::max(1u, static_cast<uint32_t>(std::floor(count * share)));
}

}  // namespace

int NiceValueFor(double share) {
  if (share >= 1) return 0;

  // Beside a thread of weight 1, a thread of weight w gets w / (w + 1): w = share / (1 - share).
  const double steps = std::log((1 - share) / share) / std::log(1.25);
  return static_cast<int>(std::lround(std::clamp(steps, 0.0, 19.0)));
}

Evaluations::~Evaluations() {
  std::thread last;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    if (cancel_ != nullptr) cancel_->Trigger();
    last = std::move(thread_);
  }
  if (last.joinable()) last.join();
}

absl::StatusOr<uint64_t> Evaluations::Start(Task task, Done done) {
  const auto& datasets = options_.spec.datasets;
  const auto is_named = [&](const EvalSpec::Dataset& dataset) {
    return dataset.name == task.dataset;
  };
  const auto found = std::find_if(datasets.begin(), datasets.end(), is_named);
  if (found == datasets.end() || !options_.spec.scorer.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("the job's eval.datasets have no \"", task.dataset, "\""));
  }

  MutexLock lock(&mu_);
  if (closed_)
    return absl::UnavailableError("the job is leaving this worker; ask another, or again later");
  if (running_) {
    return Error(absl::StatusCode::kResourceExhausted, "BUSY",
                 "another evaluation is under way here; ask again later");
  }

  // The thread of the last task has reset running_, so it ends shortly.
  if (thread_.joinable()) thread_.join();
  running_ = true;
  cancel_ = std::make_shared<rpc::Cancel>();
  thread_ = std::thread(
      [this, task = std::move(task), done = std::move(done), cancel = cancel_, dataset = &*found] {
        // On Linux this sets the nice value of the calling thread only. The threads of the engine
        // inherit it, because this thread starts them.
        (void)::setpriority(PRIO_PROCESS, 0, NiceValueFor(options_.spec.share));
        absl::StatusOr<EvalResult> result = Run(task, *dataset, cancel.get());
        {
          MutexLock end(&mu_);
          running_ = false;
        }
        done(std::move(result));
      });
  pthread_setname_np(thread_.native_handle(), "sluice-evaluate");
  return ++last_;
}

void Evaluations::Cancel(uint64_t task) {
  MutexLock lock(&mu_);
  if (task == last_ && cancel_ != nullptr) cancel_->Trigger();
}

absl::StatusOr<EvalResult> Evaluations::Run(const Task& task, const EvalSpec::Dataset& dataset,
                                            rpc::Cancel* cancel) const {
  const EvalSpec& spec = options_.spec;

  // The evaluation's part of the session's slots and threads.
  EvalOptions options;
  options.engine = options_.engine;
  options.engine.max_versions = 1;
  options.engine.slots = ShareOf(options_.slots, spec.share);
  options.engine.threads =
      static_cast<int>(ShareOf(static_cast<uint32_t>(options.engine.threads), spec.share));

  options.chat_template = options_.chat_template;
  options.format = dataset.format;
  options.data_path = dataset.path;
  options.fields = dataset.fields;
  options.samples = spec.samples;
  options.pass_k =
      spec.samples == 1 ? std::vector<uint32_t>{1} : std::vector<uint32_t>{1, spec.samples};
  options.sampling = spec.sampling;
  options.max_prompt = options_.max_prompt;
  options.seed = spec.seed;
  options.keep = 0;
  options.bad_row_hint = "mend the line, or take it out; eval.datasets names the columns";

  options.cancelled = [cancel] {
    SLUICE_FAILPOINT("rollout.evaluate.step");
    return cancel->triggered();
  };
  options.weights = [&](absl::Span<const TensorSpec>) -> absl::StatusOr<StagedWeights> {
    SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> trainer,
                            rpc::Connect(task.trainer, {rpc::Role::kTrainer}));
    return options_.fetcher.Fetch(*trainer, task.version, std::nullopt, cancel);
  };

  // Also ends the calls to reward daemons if the evaluation itself fails.
  rpc::Cancel stop_scoring;
  const int64_t callback = cancel->AddCallback([&] { stop_scoring.Trigger(); });
  const auto remove = absl::MakeCleanup([&] { cancel->RemoveCallback(callback); });
  EvalScorer score = MakeLocalScorer(&*spec.scorer, dataset.name);
  if (dataset.scored_remotely) {
    options.scoring_threads = kRemoteRows;
    options.whole_rows = spec.scorer->scores_groups();
    options.stop_scoring = [&] { stop_scoring.Trigger(); };
    score = [&](absl::Span<const EvalText> answers, const std::string& row) {
      return options_.remote->Score(dataset.name, answers, row, &stop_scoring);
    };
  }

  SLUICE_ASSIGN_OR_RETURN(EvalResult result, Evaluate(options, score));
  if (result.answers > 0) return result;
  return absl::InvalidArgumentError(absl::StrCat(
      "eval.datasets ", dataset.name, " (", dataset.path, "): none of the ", result.unscorable,
      " answers could be scored; the first: ", result.first_unscorable));
}

}  // namespace sluice::rollout
