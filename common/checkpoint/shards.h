#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/digest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_source.h"

namespace sluice {

// Tensors in one or several safetensors files of a directory, in the form of Hugging Face: either
// STEM.safetensors, or STEM-00001-of-0000N.safetensors and so on with STEM.safetensors.index.json,
// which says in which file each tensor is.

// The default limit of a file's tensors, that of transformers.
inline constexpr int64_t kMaxShardBytes = 5'000'000'000;

// File name -> digest, for the files that a call has written.
using WrittenFiles = std::map<std::string, FileDigest>;

// Writes the tensors number `indices` of a source (all of them if it is empty), in that order, into
// files of at most `max_bytes` of tensors; a larger tensor gets a file of its own. Adds the files'
// digests to *written.
absl::Status WriteShards(const std::string& dir, absl::string_view stem,
                         const TensorSource& tensors, absl::Span<const size_t> indices,
                         const std::map<std::string, std::string>& metadata, int64_t max_bytes,
                         WrittenFiles* written);

// Whether the directory has such files.
bool HasShards(const std::string& dir, absl::string_view stem);

// Opens the files: STEM.safetensors if it exists, else those in the index.
// NOT_FOUND: there is neither. INVALID_ARGUMENT: the index is malformed, names a file outside of
// the directory, or places tensors otherwise than the files do.
absl::StatusOr<std::vector<SafetensorsFile>> OpenShards(const std::string& dir,
                                                        absl::string_view stem);

}  // namespace sluice
