#include "services/trainer/config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/algorithm_spec.h"
#include "common/rpc/convert.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::trainer {
namespace {

absl::Status NotBuilt(absl::string_view key, absl::string_view value, absl::string_view instead) {
  return absl::UnimplementedError(absl::StrCat(key, ": ", value, " is not in this build of sluice-trainer; use ", instead));
}

// What the sheets know and this trainer does not do yet is refused by name, never ignored.
absl::Status CheckBuilt(const job::v1::JobSpec& spec, uint32_t world) {
  if (spec.kind() != "rl" && spec.kind() != "sft") return NotBuilt("kind", spec.kind(), "rl or sft");
  if (world > 1 || spec.resources().trainer() > 1) return NotBuilt("resources.trainer", absl::StrCat(world), "1");
  const job::v1::Parallel& parallel = spec.trainer().parallel();
  if (parallel.data() > 1) return NotBuilt("trainer.parallel.data", absl::StrCat(parallel.data()), "1");
  if (parallel.tensor() > 1) return NotBuilt("trainer.parallel.tensor", absl::StrCat(parallel.tensor()), "1");
  if (parallel.context() > 1) return NotBuilt("trainer.parallel.context", absl::StrCat(parallel.context()), "1");
  if (spec.trainer().batching().recompute_activations()) {
    return NotBuilt("trainer.batching.recompute_activations", "true", "false");
  }
  if (spec.model().dtype() == "float16") return NotBuilt("model.dtype", spec.model().dtype(), "bfloat16, float32, or auto, which is float32 on a CPU");
  if (spec.model().has_reference() && spec.model().reference() != "initial") {
    return NotBuilt("model.reference", spec.model().reference(), "initial or none");
  }
  if (spec.resources().has_device() && spec.resources().device() != "cpu") {
    return NotBuilt("resources.device", spec.resources().device(), "auto or cpu");
  }
  if (spec.weights().has_encoding() && spec.weights().encoding() != "full") {
    return NotBuilt("weights.encoding", spec.weights().encoding(), "auto or full");
  }
  if (spec.weights().has_publish_dtype()) return NotBuilt("weights.publish_dtype", spec.weights().publish_dtype(), "auto, which is the model's");
  return absl::OkStatus();
}

OptimizerSettings OptimizerOf(const job::v1::JobSpec& spec) {
  const job::v1::Optimizer& from = spec.trainer().optimizer();
  OptimizerSettings to;
  to.name = from.name();
  to.lr = from.lr();
  if (from.betas_size() == 2) {
    to.beta1 = from.betas(0);
    to.beta2 = from.betas(1);
  }
  to.eps = from.eps();
  to.weight_decay = from.weight_decay();
  to.max_grad_norm = from.max_grad_norm();
  to.schedule = from.schedule();

  // The job file counts steps, the optimizer counts updates.
  const int64_t updates_per_step = std::max<int64_t>(1, spec.trainer().batching().minibatches());
  to.warmup = from.warmup() * updates_per_step;
  to.total = spec.limits().max_steps() * updates_per_step;
  return to;
}

absl::StatusOr<Settings> SettingsOf(const job::v1::JobSpec& spec) {
  Settings settings;
  settings.kind = spec.kind() == "sft" ? Settings::Kind::kSft : Settings::Kind::kRl;
  settings.algorithm = AlgorithmSpecOf(spec);
  settings.optimizer = OptimizerOf(spec);
  if (spec.model().has_dtype()) {
    SLUICE_ASSIGN_OR_RETURN(settings.dtype, DTypeFromTorchName(spec.model().dtype()));
  }
  settings.minibatches = spec.trainer().batching().minibatches();
  settings.micro_batch_tokens = spec.trainer().batching().micro_batch_tokens();
  settings.stream = spec.trainer().batching().stream() && !spec.run().deterministic();
  settings.max_staleness = spec.queue().max_staleness();
  settings.skip_limit = spec.limits().skipped_steps();
  settings.reference = spec.model().has_reference();
  if (settings.kind == Settings::Kind::kRl) {
    settings.group_size = spec.rollout().group().size();
    settings.temperature = spec.rollout().sampling().temperature();
    settings.max_response = spec.rollout().max_response();
    const job::v1::RolloutSampling& sampling = spec.rollout().sampling();
    if ((sampling.top_p() != 0 && sampling.top_p() != 1) || sampling.top_k() != 0) {
      return NotBuilt("rollout.sampling.top_p, top_k", absl::StrCat(sampling.top_p(), ", ", sampling.top_k()),
                      "1.0 and 0: kept sets are not replayed yet");
    }
  }
  SLUICE_RETURN_IF_ERROR(Validate(settings));
  return settings;
}

}  // namespace

absl::StatusOr<JobConfig> ConfigOf(const registry::v1::Assignment& assignment) {
  const job::v1::JobSpec& spec = assignment.spec();
  SLUICE_RETURN_IF_ERROR(CheckBuilt(spec, assignment.world()));
  if (assignment.queues_size() != 1) return NotBuilt("resources.queue", absl::StrCat(assignment.queues_size()), "1");

  JobConfig config;
  config.id = assignment.job();
  config.name = spec.name();
  config.incarnation = assignment.incarnation();
  config.queue = assignment.queues(0);
  SLUICE_ASSIGN_OR_RETURN(config.settings, SettingsOf(spec));
  config.seed = spec.run().seed();

  config.model_dir = spec.model().path();
  if (spec.model().has_init()) {
    config.model_dir = spec.model().init().config();
    config.init_seed = spec.model().init().seed();
  }
  if (config.model_dir.empty()) return absl::InvalidArgumentError("model: neither path nor init is given");
  config.chat_template = spec.model().has_chat_template() ? spec.model().chat_template() : "none";
  for (const job::v1::DataSource& source : spec.data().train()) {
    JobConfig::Source& to = config.sources.emplace_back();
    to.name = source.name();
    to.format = source.format();
    to.columns = {source.fields().begin(), source.fields().end()};
    to.columns["prompt"] = source.prompt();
    to.columns["answer"] = source.answer();
  }
  config.max_context = spec.model().max_context();

  // A folder per job, so that a job of another id never goes on from here, and its name for people.
  config.checkpoint_dir = absl::StrCat(spec.checkpoint().dir(), "/", spec.name(), "-", config.id.substr(0, 8));
  config.checkpoint_every_steps = spec.checkpoint().every_steps();
  if (spec.checkpoint().has_every()) config.checkpoint_every = rpc::FromProto(spec.checkpoint().every());
  config.keep_last = static_cast<int>(spec.checkpoint().keep_last());
  config.keep_every_steps = spec.checkpoint().keep_every_steps();
  if (assignment.has_from_version()) config.from_version = assignment.from_version();
  config.requeue = spec.queue().keep().restore() == "requeue" || config.from_version.has_value();

  config.publish_every_steps = spec.weights().every_steps() == 0 ? 1 : spec.weights().every_steps();
  config.retain_versions = static_cast<int>(spec.weights().retain_versions());
  if (spec.limits().has_max_steps()) config.max_steps = spec.limits().max_steps();
  return config;
}

}  // namespace sluice::trainer
