#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

class TensorSource;

// Reader and writer of the safetensors format: a u64 little-endian length, a JSON header of that
// length, then the bytes of the tensors.
//
// Files are untrusted. Before any tensor is read or allocated, these are checked: the header has at
// most 16 MiB and is nested at most 4 deep, names are unique, dtypes are known, dtype x shape gives
// the number of bytes without overflow, and the byte ranges cover the rest of the file without gaps
// or overlap. Errors name file, tensor, value and limit.
inline constexpr int64_t kMaxSafetensorsHeader = 16 << 20;  // Bytes.

// An open file. Read() may be called by several threads at once.
class SafetensorsFile {
 public:
  struct Entry {
    TensorSpec spec;
    int64_t offset = 0, bytes = 0;  // Place of the tensor's bytes in the file.
  };

  // INVALID_ARGUMENT: the content is wrong. NOT_FOUND and others: the file cannot be read.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& path() const { return path_; }
  // In the order of their bytes in the file.
  const std::vector<Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads a tensor's bytes to `to`, whose size must be entry.bytes. DATA_LOSS: the file has become
  // shorter since Open().
  absl::Status Read(const Entry& entry, absl::Span<std::byte> to) const;
  // Reads only the elements [first, first + count).
  absl::Status ReadElements(const Entry& entry, int64_t first, int64_t count, void* to) const;

 private:
  SafetensorsFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status ReadHeader();

  std::string path_;
  int fd_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Reads a whole file; the tensors keep their stored types.
absl::StatusOr<TensorSet> ReadSafetensors(const std::string& path);

// Writes a file with the tensors number `indices`, in that order. The file is written under a
// temporary name, synced and renamed. Equal tensors and metadata give equal bytes. If `digest` is
// given, it gets the digest of the file. The tensors are read in parts of a few megabytes.
absl::Status WriteSafetensors(const std::string& path, const TensorSource& tensors,
                              absl::Span<const size_t> indices,
                              const std::map<std::string, std::string>& metadata,
                              FileDigest* digest = nullptr);
// Writes all tensors of a source or a set, sorted by name.
absl::Status WriteSafetensors(const std::string& path, const TensorSource& tensors,
                              const std::map<std::string, std::string>& metadata = {},
                              FileDigest* digest = nullptr);
absl::Status WriteSafetensors(const std::string& path, const TensorSet& tensors,
                              const std::map<std::string, std::string>& metadata = {},
                              FileDigest* digest = nullptr);

}  // namespace sluice
