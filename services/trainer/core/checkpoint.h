#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  std::string job;              // 32 hex digits.
  PolicyVersion version;        // The checkpoint's.
  int64_t updates = 0;          // Optimizer updates done: t of AdamW and s of the schedule.
  int64_t skips_in_a_row = 0;
  uint64_t seed = 0;            // Of the job; nothing in a step is drawn at random, so it is the whole random state.
  std::string ledger_hash;      // H(version.number), 32 bytes.

  bool operator==(const TrainState&) const = default;
};

// What goes into a checkpoint. `model` and `optimizer` (AdamW's moments `m.NAME`, `v.NAME`) are fp32.
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
  TensorSet model;
  TensorSet optimizer;
  TrainState state;
  std::string cursor;
};

// Checkpoints of one job in one folder, `step-N` for version N, each a Hugging Face directory that transformers loads as
// it is (config.json, model.safetensors, tokenizer files) plus
//   optimizer.safetensors  AdamW's moments
//   cursor.bin             the queue's cursor
//   lineage.jsonl          every trajectory trained on (lineage.h)
//   state.json             TrainState, and size and SHA-256 of each file above
// A checkpoint is written into a folder of another name, synced, and renamed: it is there whole or not at all.
//
// Not thread-safe; one process writes.
class CheckpointStore {
 public:
  struct Options {
    std::string dir;             // Made if missing.
    ModelDir source;             // Where configuration and tokenizer files come from.
    int keep_last = 3;           // At least 1.
    int64_t keep_every_steps = 0;  // Versions divisible by it are kept for good; 0: none.
  };
  explicit CheckpointStore(Options options) : options_(std::move(options)) {}

  // Makes the folder and tries to write in it: better at the job's start than at its first checkpoint.
  absl::Status Prepare() const;

  // Answers with the path; then removes what `keep_last` and `keep_every_steps` no longer hold.
  // RESOURCE_EXHAUSTED: disk full; nothing but the temporary folder has changed.
  absl::StatusOr<std::string> Write(const CheckpointContents& contents);

  // The newest (by incarnation, then number) that verifies; those that do not are named in *damaged. Nullopt: there is none.
  absl::StatusOr<std::optional<Checkpoint>> Newest(std::vector<std::string>* damaged) const;
  // That of version `number`. NOT_FOUND: none. DATA_LOSS: it does not verify.
  absl::StatusOr<Checkpoint> At(int64_t number) const;

  // Paths of all, oldest first by (incarnation, number); those with an unreadable state.json are left out.
  std::vector<std::string> List() const;

 private:
  absl::Status WriteFiles(const std::string& dir, const CheckpointContents& contents) const;
  void Prune() const;

  const Options options_;
};

// Reads and verifies one checkpoint: every file's size and SHA-256, the lineage against the ledger's hash chain.
// DATA_LOSS: names the file and what is wrong. FAILED_PRECONDITION: written by a newer build.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path);

}  // namespace sluice::trainer
