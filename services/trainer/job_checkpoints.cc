#include "services/trainer/job_checkpoints.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/log/log.h"

namespace sluice::trainer {
namespace {

// The types of the tensors in the model's files, which the tensors of the checkpoints keep. Random
// weights are fp32, so nothing is listed for them.
absl::StatusOr<std::map<std::string, DType>> ModelTypes(const ModelDir& model,
                                                        const JobConfig& config) {
  std::map<std::string, DType> types;
  if (config.init_seed.has_value()) return types;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<TensorSpec> specs, ReadWeightSpecs(model));
  for (const TensorSpec& spec : specs) types[spec.name] = spec.dtype;
  return types;
}

}  // namespace

absl::Status JobCheckpoints::Open(const ModelDir& model) {
  const JobConfig& config = job_->config;
  SLUICE_ASSIGN_OR_RETURN(auto model_types, ModelTypes(model, config));
  {
    MutexLock lock(&forks_mu_);
    SLUICE_ASSIGN_OR_RETURN(forks_, Forks::Read(config.checkpoint_dir));
  }
  store_ = std::make_unique<CheckpointStore>(CheckpointStore::Options{
      .dir = config.checkpoint_dir,
      .job = config.id,
      .source = model,
      .model_types = std::move(model_types),
      .keep_last = config.keep_last,
      .keep_every_steps = config.keep_every_steps,
      .max_shard_bytes = config.max_shard_bytes,
      .is_on_branch = [this](const PolicyVersion& version) { return IsOnBranch(version); }});
  return store_->Prepare();
}

absl::StatusOr<std::optional<Checkpoint>> JobCheckpoints::FindNewest() {
  if (const std::optional<int64_t> version = job_->config.from_version; version.has_value()) {
    if (*version == 0) return std::nullopt;
    return store_->ReadVersion(*version);
  }

  std::vector<std::string> damaged;
  SLUICE_ASSIGN_OR_RETURN(std::optional<Checkpoint> found,
                          store_->ReadNewest(&damaged, [this](const PolicyVersion& version) {
                            return IsOnBranch(version);
                          }));
  const std::string instead =
      found.has_value()
          ? absl::StrCat("the run goes on from ", found->path)
          : "no checkpoint of this job verifies, so the run starts again from the model";
  for (const std::string& what : damaged) {
    log::Error("checkpoint_damaged",
               {{"job_id", job_->config.name}, {"damage", what}, {"instead", instead}});
    job_->RaiseEvent(common::v1::SEVERITY_ERROR, "checkpoint_damaged",
                     absl::StrCat(what, "; ", instead));
  }
  if (!found.has_value() && damaged.empty() && forks().empty()) RaiseEarlierJobEvent();
  return found;
}

bool JobCheckpoints::BeginsAtFork(const std::optional<Checkpoint>& found) const {
  const std::vector<Fork> all = forks();
  if (all.empty()) return false;
  return !found.has_value() || found->state.version.incarnation <= all.back().incarnation;
}

std::vector<Fork> JobCheckpoints::forks() const {
  MutexLock lock(&forks_mu_);
  return forks_->all();
}

bool JobCheckpoints::IsOnBranch(const PolicyVersion& version) const {
  MutexLock lock(&forks_mu_);
  return forks_->Holds(version);
}

std::vector<int64_t> JobCheckpoints::ListOnBranch() const {
  std::vector<int64_t> versions;
  for (const CheckpointEntry& entry : store_->List()) {
    if (entry.status.ok() && IsOnBranch(entry.state.version))
      versions.push_back(entry.state.version.number);
  }
  return versions;
}

int64_t JobCheckpoints::FindCovered(int64_t most) const {
  int64_t found = 0;
  for (const int64_t version : ListOnBranch()) {
    if (version <= most) found = std::max(found, version);
  }
  return found;
}

absl::Status JobCheckpoints::CheckCovered(int64_t version) const {
  const std::vector<int64_t> versions = ListOnBranch();
  if (version == 0 || std::count(versions.begin(), versions.end(), version) > 0)
    return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kNotFound,
      {.reason = "GONE",
       .hint = "name one of these; checkpoint.keep_last and checkpoint.keep_every_steps decide "
               "which ones are kept"},
      absl::StrCat("no checkpoint holds version ", version, "; the run can go back to version 0, ",
                   "the model",
                   versions.empty() ? "" : ", and to these: ", absl::StrJoin(versions, ", ")));
}

absl::Status JobCheckpoints::AddFork(int64_t version, PolicyVersion withdrawn,
                                     const std::string& cause) {
  MutexLock lock(&forks_mu_);
  return forks_->Add({.incarnation = job_->config.incarnation,
                      .version = version,
                      .withdrawn = withdrawn,
                      .cause = cause});
}

// A job starts from its model even if an earlier job of the same name has left checkpoints. A user
// who submits a job again may not know that.
void JobCheckpoints::RaiseEarlierJobEvent() {
  const std::optional<CheckpointEntry> earlier = FindEarlierJob(job_->config.checkpoint_dir);
  if (!earlier.has_value()) return;
  log::Warning("earlier_job", {{"job_id", job_->config.name}, {"checkpoint", earlier->path}});
  job_->RaiseEvent(
      common::v1::SEVERITY_WARNING, "earlier_job",
      absl::StrCat("this run starts from the model and not from ", earlier->path,
                   ", which is of job ", earlier->state.job,
                   ", an earlier one of this name; to start from those weights, submit with "
                   "model.path: ",
                   earlier->path));
}

void JobCheckpoints::StartWriting(QueueClient* queue, std::string previous, int64_t version) {
  if (!previous.empty()) newest_ = version;
  newest_at_ = job_->clock->Monotonic();
  writer_ = std::make_unique<CheckpointWriter>(
      store_.get(), queue, job_->clock, std::move(previous),
      [this](const std::string& path, const TrainState& state, double seconds) {
        metrics_->RecordCheckpoint(seconds);
        job_->RaiseEvent(common::v1::SEVERITY_INFO, "checkpoint", path);
        log::Info("checkpoint", {{"job_id", job_->config.name},
                                 {"version", state.version.number},
                                 {"path", path},
                                 {"seconds", seconds},
                                 {"writers", static_cast<int64_t>(store_->writers().ranks)},
                                 {"why_one", store_->writers().why}});
      });
}

bool JobCheckpoints::IsDue(int64_t version) const {
  const JobConfig& config = job_->config;
  if (config.IsLast(version)) return true;
  if (config.checkpoint_every_steps > 0 && version % config.checkpoint_every_steps == 0)
    return true;
  return job_->clock->Monotonic() - newest_at_ >= config.checkpoint_every;
}

void JobCheckpoints::AddLineage(const std::vector<LineageEntry>& entries) {
  for (const LineageEntry& entry : entries) lineage_tail_ += LineageLine(entry);
}

absl::Status JobCheckpoints::Write(CheckpointContents contents) {
  const int64_t version = contents.state.version.number;
  contents.lineage_tail = std::exchange(lineage_tail_, "");
  newest_ = version;
  newest_at_ = job_->clock->Monotonic();

  const absl::Duration start = job_->clock->Monotonic();
  const auto waits = job_->waits.Begin(
      {.kind = "STORE",
       .id = job_->config.checkpoint_dir,
       .cause =
           absl::StrCat(job_->worker, " waits for the checkpoint before this one to be written"),
       .step = version});
  const absl::Status status = writer_->Write(std::move(contents));
  seconds_waited_ = job_->SecondsSince(start);
  return status;
}

}  // namespace sluice::trainer
