#include "services/trainer/job_memory.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/machine_memory.h"
#include "common/base/status.h"
#include "common/checkpoint/model_config.h"
#include "common/log/log.h"
#include "services/trainer/core/memory_plan.h"

namespace sluice::trainer {

absl::StatusOr<Settings> FitIntoMemory(const JobConfig& config, const ModelConfig& model,
                                       const ModelConfig* teacher) {
  MemoryPlanInput input = config.plan;
  input.config = model;
  if (teacher != nullptr) input.teacher = *teacher;
  const uint64_t available = AvailableMemory(input, MachineMemory());
  const uint32_t tokens = FitMicroBatch(input, available);
  Settings settings = config.settings;
  if (tokens < input.micro_batch_tokens) settings.micro_batch_tokens = tokens;
  input.micro_batch_tokens = tokens;
  const MemoryPlan plan = PlanMemory(input);
  std::vector<std::string> rows;
  for (const MemoryPlan::Row& row : plan.rows)
    rows.push_back(absl::StrCat(row.name, " ", GibText(row.bytes)));
  log::Info("memory_plan", {{"job_id", config.name},
                            {"bytes", static_cast<int64_t>(plan.total())},
                            {"available_bytes", static_cast<int64_t>(available)},
                            {"micro_batch_tokens", static_cast<int64_t>(tokens)},
                            {"parts", absl::StrJoin(rows, ", ")}});
  SLUICE_RETURN_IF_ERROR(CheckFits(plan, available));
  return settings;
}

}  // namespace sluice::trainer
