#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/chunk.h"
#include "common/weights/chunk_format.h"
#include "common/weights/fingerprint.h"
#include "kernels/weight_delta/op.h"

// The chunks of a delta (codec 1): the difference between two states of the weights, tile by tile
// (kernels/weight_delta/op.h). After header and runs (chunk_format.h) comes the directory, 8 bytes
// per tile, then the bodies of the tiles. Tiles cut a run into 2^tile_log2 elements from its start.
namespace sluice {

struct DeltaChunkOptions {
  int tile_log2 = kernels::kDeltaTileLog2;  // Or kLongDeltaTileLog2, if very few elements change.
  uint64_t target_bytes = kChunkTargetBytes;
};

// Cuts the tiles of shards into chunks. A chunk closes before the tile that would make it longer
// than the target, but holds at least one. Shards without change are left out.
class DeltaChunkWriter {
 public:
  // `emit` gets each chunk. The target is at most kMaxChunkBytes.
  DeltaChunkWriter(const DeltaChunkOptions& options, std::function<void(std::string chunk)> emit);

  // Adds all tiles of a shard of tensor number `tensor`, with their bodies. The first body begins
  // at `before` in the count of the ends, modulo 2^32: where EncodeDeltaCuda() encoded several
  // shards, that is the end of the last tile of the shard before.
  void Add(uint32_t tensor, const kernels::DeltaShard& shard,
           absl::Span<const kernels::DeltaTile> tiles, absl::Span<const uint8_t> bodies,
           uint32_t before = 0);
  // Emits the last chunk. Nothing may be added afterwards.
  void Finish();

 private:
  uint64_t bytes() const;
  void Close();

  const DeltaChunkOptions options_;
  const std::function<void(std::string chunk)> emit_;

  // The chunk being built.
  std::vector<ChunkRun> runs_;
  std::vector<kernels::DeltaTile> tiles_;
  std::string body_;
};

// A shard of tensor number `tensor`, whose elements have `width` bytes.
struct DeltaInput {
  uint32_t tensor = 0;
  int width = 0;
  kernels::DeltaSource source;
};

// Calls work(i) once for each i < n, on threads of the caller's choice: ParallelEach() of
// common/models/parallel.h, or a plain loop.
using ForEachIndex = absl::FunctionRef<void(int64_t n, absl::FunctionRef<void(int64_t i)> work)>;

// Encodes the changes of all inputs into chunks, in order, and copies them to the shadows. Adds to
// sums[i] what input i adds to the fingerprint. The bytes do not depend on the threads.
void EncodeDeltaChunks(absl::Span<const DeltaInput> inputs, const DeltaChunkOptions& options,
                       ForEachIndex for_each, const std::function<void(std::string chunk)>& emit,
                       absl::Span<Fingerprint> sums);

// Returns how many elements a chunk of DeltaChunkWriter changes.
uint64_t CountChanged(absl::string_view chunk);

// Weights in memory that a delta changes: a shard of tensor number `tensor`. `shard.tid` is not
// used.
struct DeltaTarget {
  uint32_t tensor = 0;
  kernels::DeltaShard shard;
  void* weights = nullptr;
};
// All of a set, one target per tensor.
std::vector<DeltaTarget> WholeTensors(TensorSet* weights);

// A chunk that was checked to the last bit: it can be applied without errors.
class DeltaChunk {
 public:
  // Takes memory for the chunk and for the changes of one tile, and time in proportion to both,
  // whatever the bytes are.
  // DATA_LOSS: the chunk is malformed, or no delta of `layout` (the tensors, in the order of their
  // numbers). The message names chunk, tensor and tile.
  static absl::StatusOr<DeltaChunk> Parse(std::string chunk, absl::Span<const TensorSpec> layout);

  // Goes forward (sign +1) or backward (sign -1): adds the differences to the elements of
  // `targets`, which are in the order of their tensors, and adds to sums[tensor] what that adds to
  // the fingerprint of the tensor. Elements that no target holds are skipped.
  void Apply(int sign, absl::Span<const DeltaTarget> targets, absl::Span<Fingerprint> sums) const;

  struct Run {
    uint32_t tensor;
    int width;                  // Bytes of an element.
    kernels::DeltaShard shard;  // Up to the end of the run.
    uint64_t start;             // The run's first element in the shard.
    uint32_t first_tile, tiles;
  };
  // Calls visit(start, changes) for each tile of a run that has a change, in order. The tile begins
  // at element `start` of the run's shard.
  using TileVisitor = absl::FunctionRef<void(uint64_t start, const kernels::DeltaChanges& changes)>;
  void ForEachTile(const Run& run, TileVisitor visit) const;
  // The same for the tiles [begin, end) of the run alone. `changes` is the room for one tile.
  void ForEachTile(const Run& run, uint32_t begin, uint32_t end, kernels::DeltaChanges* changes,
                   TileVisitor visit) const;

  // For kernels that read the bytes themselves.
  absl::Span<const Run> runs() const { return runs_; }
  absl::Span<const kernels::DeltaTile> tiles() const { return tiles_; }
  const std::string& bytes() const { return bytes_; }
  uint64_t changed() const { return changed_; }

 private:
  DeltaChunk() = default;
  // Return what is wrong, or "".
  std::string ReadHeader(ChunkHeader* header);
  std::string ReadRun(const ChunkRun& run, absl::Span<const TensorSpec> layout);
  std::string CheckTiles(absl::Span<const TensorSpec> layout) const;
  // Decodes tile number `tile` of a run. Returns what is wrong, or null.
  const char* Decode(const Run& run, uint32_t tile, kernels::DeltaChanges* changes) const;
  absl::Span<const uint8_t> body() const;

  std::string bytes_;
  int tile_log2_ = 0;
  std::vector<Run> runs_;
  std::vector<kernels::DeltaTile> tiles_;  // Of all runs.
  size_t body_begin_ = 0;                  // In bytes_.
  uint64_t changed_ = 0;
};

// A chunk, and the way in which it is taken: forward (+1) or backward (-1).
struct SignedChunk {
  DeltaChunk chunk;
  int sign = +1;
};

// Adds up deltas of consecutive states, in whatever chunks and shards, into one from the first
// state to the last. Elements that come back to where they were are left out. Needs no weights, but
// memory for all changes of one tensor.
void MergeDeltas(absl::Span<const SignedChunk> chunks, absl::Span<const TensorSpec> layout,
                 const DeltaChunkOptions& options,
                 const std::function<void(std::string chunk)>& emit);

}  // namespace sluice
