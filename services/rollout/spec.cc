#include <algorithm>

#include "common/base/roots.h"
#include "common/base/status.h"
#include "common/config/check.h"
#include "common/config/columns.h"
#include "common/scoring/job_scorer.h"
#include "services/rollout/engine_spec.h"
#include "services/rollout/session.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::rollout {
namespace {

absl::StatusOr<EvalSpec> ReadEval(const job::v1::JobSpec& spec) {
  EvalSpec read;
  if (spec.eval().every_steps() == 0) return read;

  SLUICE_ASSIGN_OR_RETURN(read.scorer, MakeScorer(spec.reward()));
  for (const job::v1::DataSource& source : spec.eval().datasets()) {
    EvalSpec::Dataset& dataset = read.datasets.emplace_back();
    dataset.name = source.name();
    dataset.path = PathOf(source);
    if (source.has_format() && source.format() != "none") dataset.format = source.format();
    dataset.fields = ColumnsOf(source);
    dataset.scored_remotely = ScoresOutside(spec.reward(), source.name());
  }

  read.samples = std::max(1u, spec.eval().samples());
  read.sampling = {.temperature = static_cast<float>(spec.eval().temperature()),
                   .max_tokens = spec.rollout().max_response()};
  read.seed = spec.run().seed();
  if (spec.eval().share() > 0) read.share = spec.eval().share();
  return read;
}

}  // namespace

absl::StatusOr<SessionSpec> ReadSpec(const job::v1::JobSpec& spec, int threads) {
  SLUICE_RETURN_IF_ERROR(CheckOnDaemon(spec));
  SessionSpec read;
  const job::v1::Rollout& rollout = spec.rollout();

  SLUICE_ASSIGN_OR_RETURN(read.engine, EngineSpecOf(spec));
  read.engine.threads = threads;
  read.max_prompt = spec.data().order().max_prompt();

  read.sampling = {.temperature = static_cast<float>(rollout.sampling().temperature()),
                   .top_p = rollout.sampling().top_p(),
                   .top_k = rollout.sampling().top_k(),
                   .max_tokens = rollout.max_response()};
  SLUICE_RETURN_IF_ERROR(Annotate(CheckSampling(read.sampling, /*trainable=*/true), "rollout"));

  read.chat_template = spec.model().has_chat_template() ? spec.model().chat_template() : "none";
  for (const job::v1::DataSource& source : spec.data().train()) {
    PromptRenderer::Source& made = read.sources.emplace_back();
    made.name = source.name();
    if (source.has_format() && source.format() != "none") made.format = source.format();
    made.columns = ColumnsOf(source);
  }
  SLUICE_ASSIGN_OR_RETURN(read.eval, ReadEval(spec));

  // If an answer went on over keys and values of two versions, the trainer could not compute its
  // log-probs in the same bits with any single version. So a deterministic job recomputes.
  read.deterministic = spec.run().deterministic();
  read.fan_out = spec.weights().fan_out() == "star"    ? FanOut::kStar
                 : spec.weights().fan_out() == "chain" ? FanOut::kChain
                                                       : FanOut::kAuto;
  read.shared_memory = spec.weights().shared_memory();
  read.broadcast = spec.weights().broadcast();
  read.ucx = spec.weights().ucx();
  read.weights_dir = spec.weights().dir();
  if (const auto roots = ProcessRoots(); roots != nullptr && !read.weights_dir.empty()) {
    SLUICE_RETURN_IF_ERROR(
        Annotate(roots->Check(read.weights_dir, Roots::Access::kRead), "weights.dir"));
  }
  read.canary = spec.weights().has_canary();
  read.kv = read.deterministic || spec.weights().kv_cache() == "recompute" ? KvPolicy::kRecompute
                                                                           : KvPolicy::kKeep;
  read.group_size = std::max(1u, rollout.group().size());
  read.piece = std::max(1u, rollout.piece());
  read.answer_ends = GivesTokenRewards(spec.reward());
  return read;
}

}  // namespace sluice::rollout
