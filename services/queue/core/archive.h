#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/id.h"
#include "services/queue/core/field_list.h"
#include "services/queue/core/types.h"

// How the queue's structs become bytes and come back. Each struct names its fields once, for both
// directions:
//
//   SLUICE_FIELDS(Piece, at, segment, parent, role, turn, count, trainable, runs, duration)
//
// A struct with a field that is not named does not compile. Integers are varints, signed ones
// zigzag. Containers begin with their count. Payload (Bytes) of more than kInHead bytes is not
// copied into the head: Encoded::parts shares it.
namespace sluice::queue {

// Payload of up to this many bytes is part of the head.
inline constexpr uint64_t kInHead = 64;

// What happens to larger payload: it is kept, or only its size and CRC are.
enum class Payload { kKept, kLeftOut };

struct Encoded {
  std::string head;
  std::vector<Bytes> parts;  // In the order in which the head names them.
};

// Payload as it comes back: whole parts, one behind the other.
struct PayloadRun {
  std::shared_ptr<const void> owner;
  absl::string_view bytes;
};

template <typename T>
concept Sequence = requires(T t, typename T::value_type v) {
  t.size();
  t.push_back(v);
} && !std::same_as<T, std::string>;
template <typename T>
concept Set = requires { typename T::key_type; } &&
              std::same_as<typename T::key_type, typename T::value_type>;
template <typename T>
concept Map = requires { typename T::mapped_type; };

class Writer {
 public:
  static constexpr bool kReading = false;

  explicit Writer(Payload payload) : payload_(payload) {}

  template <typename... T>
  void operator()(const T&... values) {
    (Put(values), ...);
  }
  Encoded Finish() && { return std::move(out_); }

 private:
  void WriteVarint(uint64_t value) {
    char bytes[10];
    int n = 0;
    for (; value >= 0x80; value >>= 7) bytes[n++] = static_cast<char>(value | 0x80);
    bytes[n++] = static_cast<char>(value);
    out_.head.append(bytes, n);
  }
  void WriteRaw(const void* bytes, size_t size) {
    out_.head.append(static_cast<const char*>(bytes), size);
  }

  void Put(std::integral auto value) {
    if constexpr (std::is_signed_v<decltype(value)>) {
      const int64_t wide = value;
      WriteVarint(static_cast<uint64_t>(wide) << 1 ^ static_cast<uint64_t>(wide >> 63));
    } else {
      WriteVarint(value);
    }
  }
  template <typename T>
    requires std::is_enum_v<T>
  void Put(T value) {
    WriteVarint(static_cast<uint32_t>(value));
  }
  void Put(double value) { WriteRaw(&value, sizeof(value)); }
  void Put(const std::string& text) {
    WriteVarint(text.size());
    out_.head.append(text);
  }
  void Put(const Id16& id) { WriteRaw(id.bytes.data(), id.bytes.size()); }
  void Put(absl::Duration duration);
  void Put(const absl::Status& status);
  void Put(const Bytes& bytes);
  template <typename T, size_t N>
  void Put(const std::array<T, N>& values) {
    for (const T& value : values) Put(value);
  }
  template <typename A, typename B>
  void Put(const std::pair<A, B>& pair) {
    Put(pair.first);
    Put(pair.second);
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value) Put(*value);
  }
  template <typename... T>
  void Put(const std::variant<T...>& value) {
    WriteVarint(value.index());
    std::visit([this](const auto& held) { Put(held); }, value);
  }
  template <typename T>
    requires Sequence<T> || Set<T> || Map<T>
  void Put(const T& values) {
    WriteVarint(values.size());
    if constexpr (requires { typename T::hasher; }) {
      // A hash table has no order of its own; sorted, equal states give equal bytes.
      std::vector<const typename T::value_type*> sorted;
      sorted.reserve(values.size());
      for (const auto& value : values) sorted.push_back(&value);
      std::sort(sorted.begin(), sorted.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
      for (const auto* value : sorted) Put(*value);
    } else {
      for (const auto& value : values) Put(value);
    }
  }
  template <typename T>
  void Put(const std::unique_ptr<T>& value) {
    Put(*value);
  }
  template <typename T>
    requires std::is_class_v<T> && (!Sequence<T> && !Set<T> && !Map<T>)
  void Put(const T& value) {
    Fields(*this, value);
  }

  const Payload payload_;
  Encoded out_;
};

// Reads what a Writer made. It is safe with any other bytes: they lead either to an error, with
// all values from there on empty, or to other values (an enum may get a number that has no name).
// Memory stays within a fixed multiple of the bytes given.
class Reader {
 public:
  static constexpr bool kReading = true;

  // `head` outlives the reader.
  Reader(absl::string_view head, std::vector<PayloadRun> payload)
      : head_(head), payload_(std::move(payload)) {}

  template <typename... T>
  void operator()(T&... values) {
    (Get(values), ...);
  }
  // DATA_LOSS: bytes were missing, or some are left.
  absl::Status Finish() const;
  bool failed() const { return failed_; }
  // The caller found that the values read contradict each other.
  void Fail() { failed_ = true, head_ = {}; }

 private:
  uint64_t ReadVarint();
  // Reads a count of things that take at least a byte each, so more than the bytes left is an
  // error.
  uint64_t ReadCount();
  absl::string_view ReadRaw(size_t size);

  template <typename T>
    requires std::integral<T>
  void Get(T& value) {
    const uint64_t raw = ReadVarint();
    if constexpr (std::is_signed_v<T>) {
      value = static_cast<T>(static_cast<int64_t>(raw >> 1) ^ -static_cast<int64_t>(raw & 1));
    } else {
      value = static_cast<T>(raw);
      if (static_cast<uint64_t>(value) != raw) Fail();
    }
  }
  template <typename T>
    requires std::is_enum_v<T>
  void Get(T& value) {
    value = static_cast<T>(ReadVarint());
  }
  void Get(double& value);
  void Get(std::string& text) { text = std::string(ReadRaw(ReadCount())); }
  void Get(Id16& id);
  void Get(absl::Duration& duration);
  void Get(absl::Status& status);
  void Get(Bytes& bytes);
  template <typename T, size_t N>
  void Get(std::array<T, N>& values) {
    for (T& value : values) Get(value);
  }
  template <typename A, typename B>
  void Get(std::pair<A, B>& pair) {
    Get(pair.first);
    Get(pair.second);
  }
  template <typename T>
  void Get(std::optional<T>& value) {
    bool has = false;
    Get(has);
    T held{};
    if (has) Get(held);
    value = has ? std::optional<T>(std::move(held)) : std::nullopt;
  }
  template <typename... T>
  void Get(std::variant<T...>& value) {
    const uint64_t index = ReadVarint();
    if (index >= sizeof...(T)) return Fail();
    GetAlternative(value, index, std::make_index_sequence<sizeof...(T)>());
  }
  template <typename V, size_t... I>
  void GetAlternative(V& value, size_t index, std::index_sequence<I...>) {
    ((index == I ? Get(value.template emplace<I>()) : void()), ...);
  }
  template <Sequence T>
  void Get(T& values) {
    values.clear();
    for (uint64_t n = ReadCount(); n > 0 && !failed_; --n) {
      values.emplace_back();
      Get(values.back());
    }
  }
  template <Set T>
  void Get(T& values) {
    values.clear();
    for (uint64_t n = ReadCount(); n > 0 && !failed_; --n) {
      typename T::value_type value{};
      Get(value);
      if (!values.insert(std::move(value)).second) Fail();
    }
  }
  template <typename T>
  void Get(std::unique_ptr<T>& value) {
    value = std::make_unique<T>();
    Get(*value);
  }
  template <Map T>
  void Get(T& values) {
    values.clear();
    for (uint64_t n = ReadCount(); n > 0 && !failed_; --n) {
      typename T::key_type key{};
      Get(key);
      const auto [it, fresh] = values.try_emplace(std::move(key));
      if (!fresh) return Fail();
      Get(it->second);
    }
  }
  template <typename T>
    requires std::is_class_v<T> && (!Sequence<T> && !Set<T> && !Map<T>)
  void Get(T& value) {
    Fields(*this, value);
  }

  absl::string_view head_;  // The part that is not read yet.
  std::vector<PayloadRun> payload_;
  // The next part of the payload begins at byte place_ of payload_[run_].
  size_t run_ = 0;
  uint64_t place_ = 0;
  bool failed_ = false;
};

}  // namespace sluice::queue
