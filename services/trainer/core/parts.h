#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/shards.h"
#include "common/checkpoint/tensor_source.h"

// Tensors in a folder to which each rank has written its part. For a stem there are
//   STEM-rank<R>.safetensors   what rank R has, in several files if that is above the limit
//                              (shards.h); each tensor has the name of the whole one, one
//                              dimension, and the elements of the part
//   STEM.parts.json            {"ranks": N, "tensors": [{"name": .., "dtype": .., "shape": [..],
//                              "begins": [N + 1]}, ..]}, by rising names: the part of rank R of a
//                              tensor are its elements from begins[R] up to begins[R + 1], in
//                              row-major order
namespace sluice::trainer {

// Whole tensors, by their names in rising order, and how they are shared out.
struct PartedTensors {
  std::vector<TensorSpec> specs;
  // [tensor][rank]: the element with which the part of the rank begins; its end is where the next
  // part begins.
  std::vector<std::vector<int64_t>> begins;

  int ranks() const { return begins.empty() ? 0 : static_cast<int>(begins[0].size()) - 1; }
};

// Tensors of which each rank has a part, so that all ranks can write them together.
class PartedSource : public TensorSource {
 public:
  virtual int ranks() const = 0;
  // Tries whether all ranks see the folder `dir`, and what others write there, and may write there
  // themselves. Returns why not, or an empty string.
  virtual absl::StatusOr<std::string> FindObstacle(const std::string& dir) const = 0;
  // Has each rank write its part of the tensors number `indices` (all of them if it is empty) into
  // files of at most `max_bytes` of tensors, and returns once all have. Adds the digests of all
  // files to *written.
  // UNAVAILABLE: a rank is gone, or what it has written is not to be seen here. Other errors are
  // those of the rank that could not write its part.
  virtual absl::Status WriteParts(const std::string& dir, absl::string_view stem,
                                  absl::Span<const size_t> indices, int64_t max_bytes,
                                  WrittenFiles* written) const = 0;
};

// Reads the elements [first, first + count) of a whole tensor, all of which are of this rank.
using ReadOwn = std::function<absl::Status(size_t tensor, int64_t first, int64_t count, void* to)>;

// Writes the files of one rank, and returns their digests.
absl::StatusOr<WrittenFiles> WriteRankFiles(const std::string& dir, absl::string_view stem,
                                            const PartedTensors& tensors, size_t rank,
                                            absl::Span<const size_t> indices, int64_t max_bytes,
                                            const ReadOwn& read);

// What a rank tells rank 0 about its files, as text.
std::string EncodeRankFiles(const absl::StatusOr<WrittenFiles>& files);
// Reads it, and compares the sizes with what this rank sees in the folder. Errors are those that
// the rank has told, with its number. UNAVAILABLE: a file is not there, or has another size.
absl::StatusOr<WrittenFiles> DecodeRankFiles(const std::string& dir, absl::string_view stem,
                                             int rank, absl::string_view text);

// Writes STEM.parts.json, once the files of all ranks are there.
absl::Status WritePartsIndex(const std::string& dir, absl::string_view stem,
                             const PartedTensors& tensors, absl::Span<const size_t> indices,
                             WrittenFiles* written);

// Whether the tensors of the stem are in parts.
bool HasParts(const std::string& dir, absl::string_view stem);

// Opens the tensors of a stem, in parts or not. They are read from the files.
// NOT_FOUND, INVALID_ARGUMENT: as OpenShards() has them; also if the parts do not make whole
// tensors.
absl::StatusOr<std::shared_ptr<const TensorSource>> OpenTensors(const std::string& dir,
                                                                absl::string_view stem);

}  // namespace sluice::trainer
