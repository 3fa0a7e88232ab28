// `sluice plan`: what a job's trainer will hold in memory, before the job is submitted.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/machine_memory.h"
#include "common/base/status_text.h"
#include "common/checkpoint/model_dir.h"
#include "common/config/job_file.h"
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

void PrintPlan(const trainer::MemoryPlan& plan, uint64_t available, bool limited) {
  std::vector<std::vector<std::string>> rows = {{"WHAT", "MEMORY", "HOW"}};
  for (const trainer::MemoryPlan::Row& row : plan.rows)
    rows.push_back({row.name, trainer::GibText(row.bytes), row.how});
  rows.push_back({"total", trainer::GibText(plan.total()),
                  absl::StrCat(limited ? "trainer.memory is " : "this machine has ",
                               trainer::GibText(available))});
  std::fputs(Table(rows).c_str(), stdout);
}

nlohmann::ordered_json PlanJson(const trainer::MemoryPlan& plan, uint64_t available,
                                uint32_t micro_batch_tokens) {
  nlohmann::ordered_json json = {{"total_bytes", plan.total()},
                                 {"machine_bytes", MachineMemory()},
                                 {"available_bytes", available},
                                 {"micro_batch_tokens", micro_batch_tokens}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const trainer::MemoryPlan::Row& row : plan.rows)
    json["rows"].push_back({{"name", row.name}, {"bytes", row.bytes}, {"how", row.how}});
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
  if (IsData(options.output)) {
    PrintData(PlanJson(plan, available, input->micro_batch_tokens), options.output);
  } else {
    PrintPlan(plan, available, /*limited=*/available < MachineMemory());
  }
  const absl::Status fits = trainer::CheckFits(plan, available);
  if (!fits.ok() && !IsData(options.output))
    std::fprintf(stderr, "warning, if the trainer runs on a machine like this one: %s\n",
                 StatusText(fits).c_str());
  return kDone;
}

}  // namespace

std::vector<Command> PlanCommands() {
  return {{"", "plan", "Print what the trainer of a job will hold in memory.",
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
