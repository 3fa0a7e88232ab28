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

// The safetensors format: u64 little-endian length, a JSON header of that length, then the tensors'
// bytes.
//
// Files come from outside and are believed in nothing. Checked before any tensor is read or
// allocated: header at most 16 MiB and nested at most 4 deep; names unique; known dtype; dtype x
// shape = the range's bytes, without overflow; ranges that follow each other without hole or
// overlap up to the file's end. Errors name file, tensor, value and limit.
inline constexpr int64_t kMaxSafetensorsHeader = 16 << 20;  // Bytes.

class SafetensorsFile {
 public:
  struct Entry {
    TensorSpec spec;
    int64_t offset = 0, bytes = 0;  // In the file.
  };

  // NOT_FOUND and the like: the file. INVALID_ARGUMENT: its content.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<Entry>& entries() const { return entries_; }  // In the order of their bytes.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads a tensor's bytes; `to` has entry.bytes. DATA_LOSS: the file got shorter meanwhile.
  absl::Status Read(const Entry& entry, absl::Span<std::byte> to) const;

 private:
  SafetensorsFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status ReadHeader();

  std::string path_;
  int fd_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The whole file as it is stored.
absl::StatusOr<TensorSet> ReadSafetensors(const std::string& path);

// Writes the tensors `indices` of `tensors`, in that order (all, by name, in the short form): temp,
// fsync, rename. Equal tensors and metadata make equal bytes. `digest`, if given, is that of the
// file.
absl::Status WriteSafetensors(const std::string& path, const TensorSet& tensors,
                              absl::Span<const size_t> indices,
                              const std::map<std::string, std::string>& metadata,
                              FileDigest* digest = nullptr);
absl::Status WriteSafetensors(const std::string& path, const TensorSet& tensors,
                              const std::map<std::string, std::string>& metadata = {},
                              FileDigest* digest = nullptr);

}  // namespace sluice
