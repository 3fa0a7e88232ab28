#include "tools/sluice/export.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/safetensors.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/evaluations.h"
#include "services/trainer/core/forks.h"

namespace sluice::cli {
namespace {

// Writes the checkpoint's parameters converted to `dtype`.
absl::Status ExportAs(const std::string& checkpoint, const std::string& out, DType dtype) {
  SLUICE_ASSIGN_OR_RETURN(const ModelDir source, ReadModelDir(checkpoint));
  SLUICE_ASSIGN_OR_RETURN(const TensorSet parameters, trainer::ReadCheckpointModel(checkpoint));
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights, TensorSet::Create(source.config.Parameters(dtype)));
  SLUICE_RETURN_IF_ERROR(ConvertTensors(parameters, &weights));
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t bad = FirstNonFinite(dtype, weights.data(i), weights.elements(i));
    if (bad < 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "element ", bad, " of ", weights.spec(i).name, " is ", parameters.as<float>(i)[bad],
        ", too large for ", DTypeName(dtype), "; export it as float32 or bfloat16"));
  }
  return WriteModelDir(out, source, weights);
}

// Copies the model files of the checkpoint unchanged.
absl::Status CopyModel(const std::string& checkpoint, const std::string& out) {
  return WriteDirAtomic(out, [&](const std::string& temporary) {
    return trainer::CopyCheckpointModel(checkpoint, temporary);
  });
}

// Adds to DATA_LOSS how to find the checkpoints that are intact.
absl::Status WithVerifyHint(const std::string& checkpoint, const absl::Status& status) {
  if (!absl::IsDataLoss(status)) return status;
  return ErrorWith(absl::StatusCode::kDataLoss,
                   {.hint = absl::StrCat("sluice ckpt verify ",
                                         std::filesystem::path(checkpoint).parent_path().string(),
                                         " says which checkpoints are intact")},
                   status.message());
}

// Returns the folder of the job's checkpoints: the one in `dir` that is named after the job's id,
// or `dir` itself if there is none.
absl::StatusOr<std::string> FindJobFolder(const std::string& dir, const std::string& job) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(dir));
  for (const std::string& name : names) {
    if (job.size() >= 8 && absl::EndsWith(name, absl::StrCat("-", job.substr(0, 8)))) {
      return absl::StrCat(dir, "/", name);
    }
  }
  return dir;
}

}  // namespace

bool HoldsCheckpoints(const std::string& dir) {
  return !trainer::CheckpointStore({.dir = dir}).List().empty();
}

absl::StatusOr<std::string> FindNewestCheckpoint(const std::string& dir, const std::string& job,
                                                 std::vector<std::string>* unreadable) {
  SLUICE_ASSIGN_OR_RETURN(const std::string own, FindJobFolder(dir, job));
  const std::vector<trainer::CheckpointEntry> entries =
      trainer::CheckpointStore({.dir = own}).List();
  for (const trainer::CheckpointEntry& entry : entries) {
    if (!entry.status.ok()) unreadable->push_back(std::string(entry.status.message()));
  }
  if (entries.empty()) return absl::NotFoundError(absl::StrCat("no checkpoint in ", own));
  if (!entries.back().status.ok()) return entries.back().status;
  SLUICE_ASSIGN_OR_RETURN(const trainer::Forks forks, trainer::Forks::Read(own));
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->status.ok() && forks.Holds(entry->state.version)) return entry->path;
  }
  return absl::NotFoundError(absl::StrCat("the versions of all checkpoints in ", own,
                                          " were withdrawn or given up; name one with --step"));
}

absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                              std::optional<DType> dtype) {
  if (PathExists(out))
    return absl::AlreadyExistsError(absl::StrCat(out, " exists already; name a new directory"));
  const absl::Status status =
      dtype.has_value() ? ExportAs(checkpoint, out, *dtype) : CopyModel(checkpoint, out);
  return WithVerifyHint(checkpoint, status);
}

absl::Status ExportAdapter(const std::string& checkpoint, const std::string& out) {
  if (PathExists(out))
    return absl::AlreadyExistsError(absl::StrCat(out, " exists already; name a new directory"));
  const absl::StatusOr<trainer::Checkpoint> opened =
      trainer::ReadCheckpointWithoutModel(checkpoint);
  if (!opened.ok()) return WithVerifyHint(checkpoint, opened.status());
  const trainer::Checkpoint& read = *opened;
  if (read.state.lora_alpha == 0) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition, {.hint = "leave --adapter out to export the model"},
        absl::StrCat(checkpoint, " has no low-rank factors: the job has no trainer.lora"));
  }

  std::vector<TensorSpec> specs;
  std::vector<size_t> from;
  std::set<std::string> modules;
  for (size_t i = 0; i < read.optimizer->specs().size(); ++i) {
    TensorSpec spec = read.optimizer->specs()[i];
    absl::string_view name = spec.name;  // p.model.layers.0.self_attn.q_proj.lora_A
    if (!absl::ConsumePrefix(&name, "p.")) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
    modules.emplace(parts[parts.size() - 2]);
    spec.name = absl::StrCat("base_model.model.", name, ".weight");
    specs.push_back(std::move(spec));
    from.push_back(i);
  }
  SLUICE_ASSIGN_OR_RETURN(TensorSet factors, TensorSet::Create(specs));
  for (size_t i = 0; i < factors.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(read.optimizer->Read(from[i], 0, factors.elements(i), factors.data(i)));
  }

  const nlohmann::ordered_json config = {
      {"peft_type", "LORA"},         {"task_type", "CAUSAL_LM"},
      {"r", specs.front().shape[0]}, {"lora_alpha", read.state.lora_alpha},
      {"target_modules", modules},   {"bias", "none"},
      {"use_rslora", false},         {"fan_in_fan_out", false},
      {"inference_mode", true},      {"base_model_name_or_path", nullptr}};
  return WriteDirAtomic(out, [&](const std::string& temporary) -> absl::Status {
    SLUICE_RETURN_IF_ERROR(
        WriteFileAtomic(temporary + "/adapter_config.json", config.dump(2) + "\n"));
    return WriteSafetensors(temporary + "/adapter_model.safetensors", factors, {{"format", "pt"}});
  });
}

absl::StatusOr<std::string> FindBestCheckpoint(const std::string& dir, const std::string& job) {
  SLUICE_ASSIGN_OR_RETURN(const std::string own, FindJobFolder(dir, job));
  if (const std::optional<int64_t> version = trainer::LinkedVersion(own, trainer::kBestLink)) {
    return absl::StrCat(own, "/step-", *version);
  }
  return ErrorWith(
      absl::StatusCode::kNotFound,
      {.hint = "give the job file an `eval` block with every_steps and datasets; without --best "
               "the latest checkpoint is exported"},
      absl::StrCat("no version with a checkpoint in ", own, " was evaluated, so none is the best"));
}

}  // namespace sluice::cli
