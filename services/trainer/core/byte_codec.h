#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::trainer {

// Writes numbers and lists of numbers as bytes, which a process of the same build reads.
class ByteWriter {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(static_cast<uint64_t>(values.size()));
    out_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// After a read past the end, all further values are 0 and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(absl::string_view in) : in_(in) {}

  template <typename T>
  void Get(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    *value = T{};
    if (const char* from = Take(sizeof(T))) std::memcpy(value, from, sizeof(T));
  }
  template <typename T>
  void Get(std::vector<T>* values) {
    const uint64_t count = Count(sizeof(T));
    if (const char* from = Take(count * sizeof(T))) {
      values->resize(count);
      if (count > 0) std::memcpy(values->data(), from, count * sizeof(T));
    }
  }
  // Reads the number of things that follow, each of at least `bytes` bytes.
  uint64_t Count(size_t bytes) {
    uint64_t count = 0;
    Get(&count);
    if (count > in_.size() / bytes) ok_ = false;
    return ok_ ? count : 0;
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }

 private:
  const char* Take(size_t bytes) {
    if (!ok_ || bytes > in_.size()) {
      ok_ = false;
      return nullptr;
    }
    const char* const at = in_.data();
    in_.remove_prefix(bytes);
    return at;
  }

  absl::string_view in_;
  bool ok_ = true;
};

}  // namespace sluice::trainer
