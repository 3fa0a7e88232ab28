// Checks of a job file with its model and data, and of the operator's policy.

#include <sys/statfs.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/config/check.h"
#include "common/config/columns.h"
#include "common/config/job_file.h"
#include "common/data/dataset.h"
#include "common/policy/policy.h"
#include "sluice/job/v1/spec.pb.h"
#include "tools/sluice/doctor/checks.h"
#include "tools/sluice/progress.h"

namespace sluice::cli {
namespace {

constexpr char kNoJob[] = "give --job FILE";
constexpr char kSeeFile[] = "see job.file";
constexpr uint64_t kRows = 1000;  // Rows read of each data file.

// The job's spec; problems of single values and between them are errors, files are not looked at.
absl::StatusOr<JobFile> ReadJob(const DoctorInputs& in) {
  JobFile file = ReadJobFile(in.job_file, {.sets = in.sets, .check_paths = false});
  SLUICE_RETURN_IF_ERROR(ProblemStatus(file.problems));
  return file;
}

std::string ModelPath(const job::v1::JobSpec& spec) {
  return spec.model().has_init() ? spec.model().init().config() : spec.model().path();
}

Finding CheckFile(const DoctorInputs& in) {
  if (in.job_file.empty()) return Skip(kNoJob);
  const absl::StatusOr<JobFile> job = ReadJob(in);
  if (job.ok()) return Pass(absl::StrCat(in.job_file, " is valid"));
  const std::string text(job.status().message());
  return Fail(text.substr(0, text.find('\n')),
              absl::StrCat("correct the file; `sluice config validate ", in.job_file,
                           "` shows every problem"));
}

// The first problem that the check of files finds below one of these blocks.
Finding CheckBlocks(const DoctorInputs& in, const std::vector<std::string>& blocks,
                    const std::string& good) {
  if (in.job_file.empty()) return Skip(kNoJob);
  const absl::StatusOr<JobFile> job = ReadJob(in);
  if (!job.ok()) return Skip(kSeeFile);
  for (const SpecProblem& problem : CheckJobSpec(*job->spec).errors) {
    for (const std::string& block : blocks) {
      if (absl::StartsWith(problem.path, block))
        return Fail(problem.ToString(),
                    absl::StrCat("correct ", problem.path, " in ", in.job_file, ", or the file"));
    }
  }
  return Pass(good);
}

Finding CheckModel(const DoctorInputs& in) {
  Finding finding = CheckBlocks(in, {"model"}, "");
  if (finding.outcome != Outcome::kOk) return finding;
  const absl::StatusOr<JobFile> job = ReadJob(in);
  const std::string path = ModelPath(*job->spec);
  const std::string fix =
      absl::StrCat("download ", path, " again, or name another directory in model");
  const absl::StatusOr<ModelDir> dir = ReadModelDir(path);
  if (!dir.ok()) return Fail(std::string(dir.status().message()), fix);
  // Reads the headers of the weights; random weights need none.
  if (!job->spec->model().has_init()) {
    const auto weights = ReadWeightSpecs(*dir);
    if (!weights.ok()) return Fail(std::string(weights.status().message()), fix);
  }
  return Pass(absl::StrCat(path, ": ", dir->config.architecture, ", ",
                           ShortCount(static_cast<double>(dir->config.NumParameters())),
                           " parameters"));
}

// Reads more rows than the check at submit does, and passes over none.
Finding CheckData(const DoctorInputs& in) {
  Finding finding = CheckBlocks(in, {"data", "eval"}, "");
  if (finding.outcome != Outcome::kOk) return finding;
  const absl::StatusOr<JobFile> job = ReadJob(in);
  uint64_t rows = 0;
  for (const job::v1::DataSource& source : job->spec->data().train()) {
    const absl::StatusOr<Dataset> read = ReadDataset({.name = source.name(),
                                                      .path = PathOf(source),
                                                      .fields = ColumnsOf(source),
                                                      .check_prompts = true,
                                                      .first_rows = kRows});
    // Rows too long for a quick look are left to the queue.
    if (absl::IsResourceExhausted(read.status())) continue;
    if (!read.ok()) {
      const std::string found(read.status().message());
      // The job passes over bad rows if the file says so.
      return job->spec->data().order().on_bad_row() == "skip"
                 ? Warn(absl::StrCat(found, "; the job skips such rows"), "mend the line")
                 : Fail(found, "mend the line, or set data.order.on_bad_row: skip");
    }
    rows += read->rows();
  }
  return Pass(absl::StrCat("the first ", rows, " rows can be read and scored"));
}

// Parameters of the job's model, or 0 if it cannot be read.
int64_t CountParameters(const job::v1::JobSpec& spec) {
  const absl::StatusOr<ModelDir> dir = ReadModelDir(ModelPath(spec));
  return dir.ok() ? dir->config.NumParameters() : 0;
}

// A checkpoint holds the weights and Adam's two moments, which are float32.
uint64_t CheckpointBytes(const job::v1::JobSpec& spec, int64_t parameters) {
  const uint64_t weight = spec.model().dtype() == "bfloat16" ? 2 + 4 : 4;
  return static_cast<uint64_t>(parameters) * (weight + 8);
}

Finding CheckCheckpoints(const DoctorInputs& in) {
  if (in.job_file.empty()) return Skip(kNoJob);
  const absl::StatusOr<JobFile> job = ReadJob(in);
  if (!job.ok()) return Skip(kSeeFile);
  const int64_t parameters = CountParameters(*job->spec);
  if (parameters == 0) return Skip("see job.model");

  const std::string& dir = job->spec->checkpoint().dir();
  std::filesystem::path folder = dir;
  std::error_code error;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path())
    folder = folder.parent_path();
  struct statfs stat{};
  if (statfs(folder.c_str(), &stat) != 0)
    return Fail(absl::StrCat("checkpoint.dir ", dir, " cannot be looked at"), "name another one");
  const uint64_t free = stat.f_bavail * static_cast<uint64_t>(stat.f_bsize);
  const uint64_t two = 2 * CheckpointBytes(*job->spec, parameters);
  const std::string found = absl::StrCat("two checkpoints need ", ShortBytes(two), ", and ", dir,
                                         " has ", ShortBytes(free), " free");
  if (two <= free) return Pass(found);
  return Fail(found, "free space there, or set checkpoint.dir to a larger disk");
}

Finding CheckPolicyFile(const DoctorInputs& in) {
  if (in.policy_file.empty()) return Skip("give --policy FILE");
  const absl::StatusOr<Policy> policy = ReadPolicy(in.policy_file);
  if (policy.ok())
    return Pass(absl::StrCat(in.policy_file, ": ", policy->caps.size(), " caps, ",
                             policy->quotas.size(), " quotas"));
  const std::string text(policy.status().message());
  return Fail(text.substr(0, text.find('\n')),
              absl::StrCat("correct ", in.policy_file,
                           ", and let the controller's user read it; configs/policy.yaml is an "
                           "example"));
}

}  // namespace

std::vector<DoctorCheck> JobChecks() {
  return {{"job", "file", "the job file is valid", CheckFile},
          {"job", "model", "its model can be read", CheckModel},
          {"job", "data", "its first 1000 rows can be read and scored", CheckData},
          {"job", "checkpoints", "two checkpoints fit on the disk", CheckCheckpoints},
          {"policy", "file", "the operator's policy can be read", CheckPolicyFile}};
}

}  // namespace sluice::cli
