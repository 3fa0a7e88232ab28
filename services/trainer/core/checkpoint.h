#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/shards.h"
#include "common/checkpoint/tensor_set.h"
#include "common/checkpoint/tensor_source.h"
#include "common/rl/version.h"
#include "services/trainer/core/parts.h"

namespace sluice::trainer {

// What a run must restore, besides tensors and cursor, to go on as if it had not been interrupted.
struct TrainState {
  std::string job;        // 32 hex digits.
  PolicyVersion version;  // The version that the checkpoint holds.
  // Number of optimizer updates: t of AdamW, and the position in the learning-rate schedule.
  int64_t updates = 0;
  int64_t skips_in_a_row = 0;  // Number of skipped steps at the end of the run so far.
  // Seed of the job. Training itself draws no random numbers, so this is the whole random state.
  uint64_t seed = 0;
  std::string ledger_hash;     // H(version.number), 32 bytes.
  double lora_alpha = 0;       // LoraSettings::alpha of low-rank training, else 0.
  int64_t critic_updates = 0;  // Number of updates of the critic; 0 if the job has none.
  // Coefficient of the KL in the reward, if advantage.kl_target adapts it; else 0.
  double reward_kl = 0;

  bool operator==(const TrainState&) const = default;
};

// What goes into a checkpoint. `model` (the parameters) and `optimizer` (AdamW's moments, as
// tensors `m.NAME` and `v.NAME`, and what else Optimizer::TakeSnapshots() gives) are fp32. So are
// the same of a critic, which are null if the job has none.
struct CheckpointContents {
  std::shared_ptr<const TensorSource> model, optimizer;
  std::shared_ptr<const TensorSource> critic, critic_moments;
  TrainState state;
  std::string cursor;        // The queue's state, opaque.
  std::string lineage_tail;  // Lines of the steps since `previous`.
  // Path of the checkpoint from which the run went on; empty if it was the initial model.
  std::string previous;
  // The newest version that all rollouts were given, if newer ones are tried first: the newest
  // checkpoint that is not younger is not removed, so that the run can go back to it.
  std::optional<int64_t> promoted;
};

// A checkpoint that was read from disk and verified.
struct Checkpoint {
  std::string path;
  TensorSet model;  // The parameters in fp32, whatever their types in model.safetensors.
  std::shared_ptr<const TensorSource> optimizer;  // Reads the file.
  // The same of the critic; null if the checkpoint has none.
  std::shared_ptr<const TensorSource> critic, critic_moments;
  TrainState state;
  std::string cursor;
};

// Whether `dir` is a checkpoint folder. The checkpoint may be damaged.
bool IsCheckpoint(const std::string& dir);

// A folder `step-N` that was found on disk. Only its state.json has been read.
struct CheckpointEntry {
  std::string path;
  // DATA_LOSS: state.json is missing or damaged. FAILED_PRECONDITION: a newer build wrote it. Both
  // name the file and what is wrong.
  absl::Status status;
  TrainState state;  // Set only if `status` is OK.
};

// The checkpoints of one job in one folder. Version N is in the folder `step-N`, which is a Hugging
// Face directory that transformers loads as it is (config.json, model.safetensors, tokenizer
// files), with these files added:
//   masters.safetensors    the fp32 parameters of those tensors that model.safetensors holds
//                          rounded; missing if it holds all of them in fp32
//   optimizer.safetensors  AdamW's moments, and the averaged weights or low-rank factors if there
//                          are any
//   critic.safetensors, critic_moments.safetensors
//                          the fp32 parameters of the critic and AdamW's moments of it, if the job
//                          has one
//   cursor.bin             the queue's cursor
//   lineage.jsonl          every trajectory that was trained on (lineage.h)
//   state.json             TrainState, the size and SHA-256 of each file above, and its own
//                          SHA-256: that of the object without the member `sha256`, with sorted
//                          keys and without spaces
// Tensors are in several files (shards.h) if they have more than `max_shard_bytes`. Those of which
// each rank has a part (PartedSource) are in files that each rank has written (parts.h), if all
// ranks see the folder; those of model.safetensors are always whole. A checkpoint is written into a
// folder of another name, synced, and renamed once all ranks have told the digests of their files,
// so it exists completely or not at all.
//
// The number `format` in state.json is 2, 3 if masters or optimizer are in several files, 4 if
// there is a critic, or 5 if tensors are in parts. Format 1 can be read too: it has no digest of
// state.json, and its model.safetensors holds the fp32 parameters. A higher format is an error;
// such a checkpoint is never skipped in favour of an older one.
//
// Not thread-safe. Only one process writes, and other ranks when it tells them to.
class CheckpointStore {
 public:
  struct Options {
    std::string dir;  // Made if missing.
    // The job to which the checkpoints must belong, 32 hex digits. Empty accepts any job's, for
    // reading.
    std::string job;
    ModelDir source;  // The configuration and tokenizer files are copied from it.
    // Types of the tensors in model.safetensors by name. Tensors that are not listed are F32.
    std::map<std::string, DType> model_types;
    int keep_last = 3;             // At least 1.
    int64_t keep_every_steps = 0;  // Versions divisible by it are never removed. 0: none.
    int64_t max_shard_bytes = kMaxShardBytes;
    // Whether a version lies on the job's branch (forks.h). Others count for nothing that is to be
    // kept. Called on the writer's thread. Empty: all do.
    std::function<bool(const PolicyVersion& version)> is_on_branch;
  };
  explicit CheckpointStore(Options options) : options_(std::move(options)) {}

  // Makes the folder, tries to write into it, and removes what an interrupted writer has left. Call
  // it when the job starts, so that a folder that cannot be written is noticed before the first
  // checkpoint is due.
  absl::Status Prepare() const;

  // Writes a checkpoint and returns its path. Each tensor source is read in parts, from its first
  // tensor to its last, and dropped when it is written. Then removes the checkpoints that neither
  // `keep_last`, `keep_every_steps`, `promoted` nor a link (evaluations.h) keeps. The checkpoint
  // just written, and those that ReadNewest() found damaged, are never removed.
  //
  // RESOURCE_EXHAUSTED: the disk is full; nothing but a temporary folder has changed.
  // DATA_LOSS CHECKPOINT_DAMAGED: the lineage of `previous` is not what was written there.
  // ABORTED FENCED: a later incarnation has written to this folder.
  // FAILED_PRECONDITION: another job, or a newer build, has written to this folder; or a parameter
  // is too large for its type in model.safetensors.
  absl::StatusOr<std::string> Write(CheckpointContents contents);

  // How the last checkpoint was written.
  struct Writers {
    int ranks = 1;    // That wrote files.
    std::string why;  // Why rank 0 alone has, although other ranks have parts of the tensors.
  };
  const Writers& writers() const { return writers_; }

  // Reads the newest checkpoint (by incarnation, then number) that verifies and lies on the branch
  // (forks.h). The reasons why others do not verify are added to *damaged. Returns nullopt if none
  // does both.
  // FAILED_PRECONDITION: one of them was written by a newer build or by another job.
  absl::StatusOr<std::optional<Checkpoint>> ReadNewest(
      std::vector<std::string>* damaged,
      const std::function<bool(const PolicyVersion&)>& is_on_branch = nullptr);
  // Reads the checkpoint of version `number`.
  // NOT_FOUND: there is none.
  // DATA_LOSS: it does not verify.
  // FAILED_PRECONDITION: the same as in ReadNewest().
  absl::StatusOr<Checkpoint> ReadVersion(int64_t number) const;

  // All folders `step-N`. Those that cannot be read come first; the others follow, oldest first by
  // (incarnation, number).
  std::vector<CheckpointEntry> List() const;

 private:
  // FAILED_PRECONDITION: one of them was written by another job or a newer build.
  absl::Status CheckOwners(const std::vector<CheckpointEntry>& entries) const;
  // Checks what CheckOwners() checks. ABORTED FENCED: a later incarnation has written to this
  // folder.
  absl::Status CheckMayWrite(const TrainState& state) const;
  absl::Status WriteFiles(const std::string& dir, CheckpointContents contents);
  absl::Status WriteModel(const std::string& dir, const TensorSource& parameters,
                          WrittenFiles* written) const;
  // Finds out which ranks can write. `tensors` are those that the ranks share out first.
  absl::Status FindWriters(const std::string& dir, const TensorSource& tensors);
  // Writes tensors number `indices` (all of them if it is empty), with all ranks if they can.
  absl::Status WriteTensors(const std::string& dir, const char* stem, const TensorSource& tensors,
                            absl::Span<const size_t> indices, WrittenFiles* written) const;
  void Prune(const std::string& written, std::optional<int64_t> promoted) const;

  const Options options_;
  // Paths that ReadNewest() could not verify. A path is removed when it is written again.
  std::set<std::string> damaged_;
  Writers writers_;
};

// Finds a checkpoint that an earlier job of the same name has left. `dir` is the job's own folder
// NAME-<first 8 digits of its id>; of the folders beside it with the same NAME, the one that was
// written to last counts. Returns its newest checkpoint, or nullopt if there is none.
std::optional<CheckpointEntry> FindEarlierJob(const std::string& dir);

// Verifies one checkpoint in bounded memory: the size and SHA-256 of every file, and the lineage
// against the ledger's hash chain.
// DATA_LOSS: something is damaged; the message names the file and what is wrong.
// FAILED_PRECONDITION: a newer build wrote it.
absl::StatusOr<TrainState> VerifyCheckpoint(const std::string& path);

// Verifies one checkpoint, then loads it. Errors are those of VerifyCheckpoint().
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path);
// The same without the model, whose files are not looked at.
absl::StatusOr<Checkpoint> ReadCheckpointWithoutModel(const std::string& path);

// Loads only the fp32 parameters, after it has verified the files that hold them. Errors are those
// of VerifyCheckpoint().
absl::StatusOr<TensorSet> ReadCheckpointModel(const std::string& path);

// Copies the files that transformers loads to the folder `to`, and verifies each of them. Errors
// are those of VerifyCheckpoint().
absl::Status CopyCheckpointModel(const std::string& path, const std::string& to);

}  // namespace sluice::trainer
