#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rl/version.h"

namespace sluice::trainer {

// What must come back so that the run goes on as if nothing had happened, beside the tensors.
struct TrainState {
  std::string job;        // 32 hex digits.
  PolicyVersion version;  // The checkpoint's.
  int64_t updates = 0;    // Optimizer updates done: t of AdamW and s of the schedule.
  int64_t skips_in_a_row = 0;
  // Of the job; nothing in a step is drawn at random, so it is the whole random state.
  uint64_t seed = 0;
  std::string ledger_hash;  // H(version.number), 32 bytes.

  bool operator==(const TrainState&) const = default;
};

// What goes into a checkpoint. `model` and `optimizer` (AdamW's moments `m.NAME`, `v.NAME`) are
// fp32.
struct CheckpointContents {
  const TensorSet* model = nullptr;
  const TensorSet* optimizer = nullptr;
  TrainState state;
  std::string cursor;        // The queue's, opaque.
  std::string lineage_tail;  // Lines since `previous`.
  std::string previous;      // Checkpoint that this one goes on from; empty: the initial model.
};

// A checkpoint as found on disk, verified.
struct Checkpoint {
  std::string path;
  TensorSet model;  // The fp32 parameters, whatever the type in model.safetensors.
  TensorSet optimizer;
  TrainState state;
  std::string cursor;
};

// Whether `dir` is a checkpoint, which may be damaged.
bool IsCheckpoint(const std::string& dir);

// A folder `step-N` as found on disk; of its files only state.json was read.
struct CheckpointEntry {
  std::string path;
  // DATA_LOSS: state.json is missing or damaged. FAILED_PRECONDITION: a newer build wrote it. Both
  // name the file and what is wrong.
  absl::Status status;
  TrainState state;  // Only where `status` is OK.
};

// Checkpoints of one job in one folder, `step-N` for version N, each a Hugging Face directory that
// transformers loads as it is (config.json, model.safetensors, tokenizer files) plus
//   masters.safetensors    the fp32 parameters of those tensors that model.safetensors holds
//                          rounded; missing where it holds all of them in fp32
//   optimizer.safetensors  AdamW's moments
//   cursor.bin             the queue's cursor
//   lineage.jsonl          every trajectory trained on (lineage.h)
//   state.json             TrainState, size and SHA-256 of each file above, and its own SHA-256: of
//                          the object without the member `sha256`, its keys sorted, without spaces
// A checkpoint is written into a folder of another name, synced, and renamed: it is there whole or
// not at all.
//
// The number `format` in state.json is 2. Format 1 is read too: it has no digest of state.json, and
// model.safetensors holds the fp32 parameters. A higher one is refused, never passed over.
//
// Not thread-safe; one process writes.
class CheckpointStore {
 public:
  struct Options {
    std::string dir;  // Made if missing.
    // 32 hex digits: whose checkpoints these must be. Empty: anyone's, to read.
    std::string job;
    ModelDir source;  // Where configuration and tokenizer files come from.
    // The types of the tensors in model.safetensors, by name; those that are not here are F32.
    std::map<std::string, DType> model_types;
    int keep_last = 3;             // At least 1.
    int64_t keep_every_steps = 0;  // Versions divisible by it are kept for good; 0: none.
  };
  explicit CheckpointStore(Options options) : options_(std::move(options)) {}

  // Makes the folder, tries to write in it, and removes what a killed writer left half done: better
  // at the job's start than at its first checkpoint.
  absl::Status Prepare() const;

  // Answers with the path; then removes what `keep_last`, `keep_every_steps` and the links
  // (evaluations.h) no longer hold.
  // Neither the one just written is removed, nor one that Newest() found damaged.
  //
  // RESOURCE_EXHAUSTED: disk full; nothing but the temporary folder has changed.
  // DATA_LOSS CHECKPOINT_DAMAGED: the lineage of `previous` is not what was written there.
  // ABORTED FENCED: a later incarnation has written here. FAILED_PRECONDITION: another job has.
  absl::StatusOr<std::string> Write(const CheckpointContents& contents);

  // The newest (by incarnation, then number) that verifies; those that do not are named in
  // *damaged. Nullopt: none does. FAILED_PRECONDITION: one is a newer build's, or another job's.
  absl::StatusOr<std::optional<Checkpoint>> Newest(std::vector<std::string>* damaged);
  // That of version `number`. NOT_FOUND: none. DATA_LOSS: it does not verify. FAILED_PRECONDITION
  // as above.
  absl::StatusOr<Checkpoint> At(int64_t number) const;

  // All folders `step-N`: first those that cannot be read, then the others, oldest first by
  // (incarnation, number).
  std::vector<CheckpointEntry> List() const;

 private:
  absl::Status CheckOwners(const std::vector<CheckpointEntry>& entries) const;
  absl::Status CheckMayWrite(const TrainState& state) const;
  absl::Status WriteFiles(const std::string& dir, const CheckpointContents& contents) const;
  absl::Status WriteModel(const std::string& dir, const TensorSet& parameters,
                          WrittenFiles* written) const;
  void Prune(const std::string& written) const;

  const Options options_;
  // Paths that Newest() could not verify, until they are written anew.
  std::set<std::string> damaged_;
};

// The newest checkpoint that another job of the same name has left beside `dir`, a job's own folder
// NAME-<first 8 digits of its id>: of the folder that was written to last. Nullopt: there is none.
std::optional<CheckpointEntry> FindEarlierJob(const std::string& dir);

// Reads one checkpoint whole, in bounded memory: every file's size and SHA-256, the lineage against
// the ledger's hash chain.
// DATA_LOSS: names the file and what is wrong. FAILED_PRECONDITION: written by a newer build.
absl::StatusOr<TrainState> VerifyCheckpoint(const std::string& path);

// Verifies one checkpoint, then loads it. Errors as VerifyCheckpoint.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path);

// The fp32 parameters alone, of files that are verified first. Errors as VerifyCheckpoint.
absl::StatusOr<TensorSet> ReadCheckpointModel(const std::string& path);

// Copies the files that transformers loads to the folder `to`, and verifies each on the way. Errors
// as VerifyCheckpoint.
absl::Status CopyCheckpointModel(const std::string& path, const std::string& to);

}  // namespace sluice::trainer
