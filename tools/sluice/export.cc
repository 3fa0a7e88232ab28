#include "tools/sluice/export.h"

#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/evaluations.h"

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
  return entries.back().path;
}

absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                              std::optional<DType> dtype) {
  if (PathExists(out))
    return absl::AlreadyExistsError(absl::StrCat(out, " exists already; name a new directory"));
  const absl::Status status =
      dtype.has_value() ? ExportAs(checkpoint, out, *dtype) : CopyModel(checkpoint, out);
  if (!absl::IsDataLoss(status)) return status;
  return ErrorWith(absl::StatusCode::kDataLoss,
                   {.hint = absl::StrCat("sluice ckpt verify ",
                                         std::filesystem::path(checkpoint).parent_path().string(),
                                         " says which checkpoints are intact")},
                   status.message());
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
