// `sluice plan`: what the trainer and each rollout of a job will hold in memory, before the job is
// submitted.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/machine_memory.h"
#include "common/base/status_text.h"
#include "common/checkpoint/model_dir.h"
#include "common/config/job_file.h"
#include "services/rollout/core/engine/engine_memory.h"
#include "services/rollout/engine_spec.h"
#include "services/trainer/core/memory_plan.h"
#include "services/trainer/job_settings.h"
#include "sluice/job/v1/spec.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

struct PlanOptions {
  std::string file, output;
  std::vector<std::string> sets;
};

// What each rollout holds of the model.
trainer::MemoryPlan PlanRollout(const ModelConfig& config, const EngineSpec& spec) {
  const EngineMemory memory = PlanEngine(config, spec);
  trainer::MemoryPlan plan;
  if (spec.max_versions > 1) {
    plan.rows.push_back(
        {"weights", spec.max_versions * memory.version_bytes,
         absl::StrCat("at most ", spec.max_versions, " versions, for weights.inflight: finish")});
  } else {
    plan.rows.push_back({"weights", memory.version_bytes, "one version"});
    plan.rows.push_back({"next weights", memory.version_bytes,
                         "while a version is built that changes many elements"});
  }
  plan.rows.push_back({"keys and values", memory.kv_bytes,
                       absl::StrCat(memory.blocks, " blocks of 32 tokens, for ", memory.slots,
                                    " answers at once")});
  return plan;
}

void PrintPlan(const char* of, const trainer::MemoryPlan& plan, const std::string& limit) {
  std::vector<std::vector<std::string>> rows = {{of, "MEMORY", "HOW"}};
  for (const trainer::MemoryPlan::Row& row : plan.rows)
    rows.push_back({row.name, trainer::GibText(row.bytes), row.how});
  rows.push_back({"total", trainer::GibText(plan.total()), limit});
  std::fputs(Table(rows).c_str(), stdout);
}

nlohmann::ordered_json RowsJson(const trainer::MemoryPlan& plan) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const trainer::MemoryPlan::Row& row : plan.rows)
    rows.push_back({{"name", row.name}, {"bytes", row.bytes}, {"how", row.how}});
  return rows;
}

nlohmann::ordered_json PlanJson(const trainer::MemoryPlan& plan, uint64_t available,
                                uint32_t micro_batch_tokens,
                                const std::optional<trainer::MemoryPlan>& rollout) {
  nlohmann::ordered_json json = {{"total_bytes", plan.total()},
                                 {"machine_bytes", MachineMemory()},
                                 {"available_bytes", available},
                                 {"micro_batch_tokens", micro_batch_tokens}};
  json["rows"] = RowsJson(plan);
  if (rollout.has_value())
    json["rollout"] = {{"total_bytes", rollout->total()}, {"rows", RowsJson(*rollout)}};
  return json;
}

ExitCode Plan(const PlanOptions& options) {
  const JobFile file = ReadJobFile(options.file, {.sets = options.sets});
  if (!file.problems.empty()) return Complain(ProblemStatus(file.problems));
  const job::v1::Model& model = file.spec->model();
  const absl::StatusOr<ModelDir> dir =
      ReadModelDir(model.has_init() ? model.init().config() : model.path());
  if (!dir.ok()) return Complain(dir.status());
  absl::StatusOr<trainer::MemoryPlanInput> input = trainer::PlanInputOf(*file.spec);
  if (!input.ok()) return Complain(input.status());
  input->config = dir->config;
  if (model.has_teacher()) {
    const absl::StatusOr<ModelDir> teacher = ReadModelDir(model.teacher().path());
    if (!teacher.ok()) return Complain(teacher.status());
    input->teacher = teacher->config;
  }

  const uint64_t available = trainer::AvailableMemory(*input, MachineMemory());
  input->micro_batch_tokens = trainer::FitMicroBatch(*input, available);
  const trainer::MemoryPlan plan = trainer::PlanMemory(*input);
  std::optional<trainer::MemoryPlan> rollout;
  if (file.spec->kind() == "rl") {
    const absl::StatusOr<EngineSpec> engine = rollout::EngineSpecOf(*file.spec);
    if (!engine.ok()) return Complain(engine.status());
    rollout = PlanRollout(dir->config, *engine);
  }

  if (IsData(options.output)) {
    PrintData(PlanJson(plan, available, input->micro_batch_tokens, rollout), options.output);
  } else {
    const std::string machine =
        absl::StrCat("this machine has ", trainer::GibText(MachineMemory()));
    const bool limited = available < MachineMemory();
    PrintPlan("TRAINER", plan,
              limited ? absl::StrCat("trainer.memory is ", trainer::GibText(available)) : machine);
    if (rollout.has_value()) {
      std::fputs("\n", stdout);
      PrintPlan("EACH ROLLOUT", *rollout, machine);
    }
  }
  const absl::Status fits = trainer::CheckFits(plan, available);
  if (!fits.ok() && !IsData(options.output))
    std::fprintf(stderr, "warning, if the trainer runs on a machine like this one: %s\n",
                 StatusText(fits).c_str());
  return kDone;
}

}  // namespace

std::vector<Command> PlanCommands() {
  return {{"", "plan", "Print what the trainer and the rollouts of a job will hold in memory.",
           "  sluice plan job.yaml\n  sluice plan job.yaml --set "
           "trainer.batching.recompute_activations=layer -o json",
           [](CLI::App* app) {
             auto o = std::make_shared<PlanOptions>();
             app->add_option("FILE", o->file, "the job file")->required();
             AddSets(app, &o->sets);
             AddFormats(app, &o->output);
             return [o] { return Plan(*o); };
           }}};
}

}  // namespace sluice::cli
