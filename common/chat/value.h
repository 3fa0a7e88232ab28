#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory_resource>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/chat/limits.h"

namespace sluice::chat {

struct Array;
struct Dict;
struct Function;
struct Method;
class Object;

// Base of everything that values share by reference count. It belongs to one rendering, so to one
// thread, and the count is not atomic.
struct Counted {
  uint32_t references = 0;
};

// A value of the template's language: 16 bytes, cheap to copy. Values are immutable, except objects
// (object.h), which have a state, and generators, which count the items they have yielded.
class Value {
 public:
  enum Kind : uint8_t {
    kUndefined,  // Carries the name of what was not found.
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,  // A string owned by the template or the variables, which outlive the rendering.
    // A namespace, macro, loop, ..: owned by the rendering and not counted, so that cycles through
    // namespaces are harmless.
    kObject,
    kFunction,  // One of the global functions.
    kString,    // A string made by the rendering. This kind and the following are counted.
    kArray,     // list, tuple, range, views of a dict, generators.
    kDict,
    kMethod,  // A bound method, such as `d.items` without the call.
  };

  Value() : kind_(kUndefined), integer_(0) {}
  static Value Undefined(absl::string_view name) { return Text(name, kUndefined); }
  static Value None() { return Value(kNone); }
  static Value Bool(bool b) { return Value(kBool, b); }
  static Value Int(int64_t i) { return Value(kInt, i); }
  static Value Float(double d) {
    Value value(kFloat);
    value.real_ = d;
    return value;
  }
  static Value Borrow(absl::string_view text) { return Text(text, kText); }
  static Value Copy(Meter& meter, absl::string_view text);
  static Value Of(Object* object) {
    Value value(kObject);
    value.object_ = object;
    return value;
  }
  static Value Of(const Function* function) {
    Value value(kFunction);
    value.function_ = function;
    return value;
  }
  // These share the object that they are given.
  static Value Of(Array* array) { return Value(kArray, array); }
  static Value Of(Dict* dict) { return Value(kDict, dict); }
  static Value Of(Method* method) { return Value(kMethod, method); }

  Value(const Value& other) { CopyBits(other), Retain(); }
  Value(Value&& other) noexcept { CopyBits(other), other.kind_ = kUndefined, other.size_ = 0; }
  Value& operator=(Value other) noexcept {
    Swap(other);
    return *this;
  }
  ~Value() {
    if (kind_ >= kString && --counted_->references == 0) Destroy();
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_string() const { return kind_ == kText || kind_ == kString; }
  bool is_integer() const { return kind_ == kInt || kind_ == kBool; }  // Python's bool is an int.
  bool is_number() const { return kind_ == kInt || kind_ == kBool || kind_ == kFloat; }

  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }
  double real() const { return kind_ == kFloat ? real_ : static_cast<double>(integer_); }
  absl::string_view text() const {  // Of a string; or the name in an undefined value.
    return {kind_ == kString ? reinterpret_cast<const char*>(counted_) + kStringHeader : text_,
            size_};
  }
  Object* object() const { return object_; }
  const Function* function() const { return function_; }
  const Array& array() const { return *reinterpret_cast<const Array*>(counted_); }
  Array& mutable_array() const { return *reinterpret_cast<Array*>(counted_); }
  const Dict& dict() const { return *reinterpret_cast<const Dict*>(counted_); }
  const Method& method() const { return *reinterpret_cast<const Method*>(counted_); }
  const void* identity() const { return counted_; }

  // Whether `| safe` or `| escape` has marked the text. Then `+` escapes texts that are added to
  // it.
  bool safe() const { return safe_; }
  Value&& MarkedSafe(bool safe) && {
    safe_ = safe;
    return std::move(*this);
  }

  // Appends to a string, in place if nothing else refers to it, so that a chain of + copies each
  // part once.
  void Append(Meter& meter, absl::string_view text);

 private:
  static constexpr size_t kStringHeader = 16;
  struct StringHeader : Counted {
    uint32_t capacity;
    Meter* meter;
  };
  static_assert(sizeof(Counted) == 4);

  explicit Value(Kind kind, int64_t i = 0) : kind_(kind), integer_(i) {}
  Value(Kind kind, void* counted) : kind_(kind), counted_(static_cast<Counted*>(counted)) {
    ++counted_->references;
  }
  static Value Text(absl::string_view text, Kind kind) {
    Value value(kind);
    value.size_ = static_cast<uint32_t>(text.size());
    value.text_ = text.data();
    return value;
  }
  static Value WithCapacity(Meter& meter, size_t capacity);

  void CopyBits(const Value& other) {
    std::memcpy(static_cast<void*>(this), static_cast<const void*>(&other), sizeof(Value));
  }
  void Swap(Value& other) {
    char bits[sizeof(Value)];
    std::memcpy(bits, static_cast<const void*>(this), sizeof(Value));
    CopyBits(other);
    std::memcpy(static_cast<void*>(&other), bits, sizeof(Value));
  }
  void Retain() {
    if (kind_ >= kString) ++counted_->references;
  }
  void Destroy();
  StringHeader* header() const { return reinterpret_cast<StringHeader*>(counted_); }

  Kind kind_;
  bool safe_ = false;
  uint32_t size_ = 0;
  union {
    int64_t integer_;
    double real_;
    const char* text_;
    Object* object_;
    const Function* function_;
    Counted* counted_;
  };
};

using Memory = std::pmr::memory_resource;

// Python's list, tuple, range, dict views and generator. A generator yields its items once. A range
// also keeps its three numbers, for printing.
struct Array : Counted {
  enum Kind : uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };
  explicit Array(Kind kind, Memory* memory = std::pmr::new_delete_resource())
      : kind(kind), items(memory) {}

  Kind kind;
  // Levels of nesting: this one, and those of the deepest item. A string or a number has none.
  uint16_t depth = 1;
  mutable uint32_t taken = 0;  // Number of items that a generator has yielded.
  int64_t start = 0, stop = 0, step = 1;
  std::pmr::vector<Value> items;

  absl::Span<const Value> Rest() const { return absl::MakeConstSpan(items).subspan(taken); }
};

struct Dict : Counted {
  explicit Dict(Memory* memory = std::pmr::new_delete_resource()) : items(memory) {}

  uint16_t depth = 1;
  std::pmr::vector<std::pair<Value, Value>> items;  // In order of insertion; keys are distinct.

  const Value* Find(absl::string_view key) const {
    for (const auto& [k, v] : items) {
      if (k.is_string() && k.text() == key) return &v;
    }
    return nullptr;
  }
};

struct Method : Counted {
  Value self;
  const Function* function = nullptr;
};

// Returns the depth of a container around `value`. Fails if that is above kMaxDepth.
uint16_t DepthAround(Meter& meter, const Value& value);

// Makes a T in `arena`. It is never destroyed, because the arena only frees its memory. An extra
// reference keeps the values that share it from deleting it.
template <typename T, typename... Args>
T* NewIn(Memory* arena, Args... args) {
  T* const object = new (arena->allocate(sizeof(T), alignof(T))) T(args..., arena);
  ++object->references;
  return object;
}

// Builds an array; each item counts as a step. If `arena` is not null, the array and its items are
// made in it (NewIn).
class ArrayBuilder {
 public:
  ArrayBuilder(Meter& meter, Array::Kind kind, Memory* arena = nullptr)
      : meter_(meter),
        array_(arena != nullptr ? NewIn<Array>(arena, kind) : new Array(kind)),
        value_(Value::Of(array_)) {}
  void Reserve(size_t items) { array_->items.reserve(items); }
  void Add(Value item) {
    meter_.Step();
    if (item.kind() >= Value::kArray)
      array_->depth = std::max(array_->depth, DepthAround(meter_, item));
    array_->items.push_back(std::move(item));
  }
  Array& array() { return *array_; }
  size_t size() const { return array_->items.size(); }
  Value Take() && { return std::move(value_); }

 private:
  Meter& meter_;
  Array* const array_;
  Value value_;  // Owns array_.
};

Value MakeTuple(Meter& meter, std::initializer_list<Value> items);

class DictBuilder {
 public:
  explicit DictBuilder(Meter& meter, Memory* arena = nullptr)
      : meter_(meter),
        dict_(arena != nullptr ? NewIn<Dict>(arena) : new Dict),
        value_(Value::Of(dict_)) {}
  void Reserve(size_t items) { dict_->items.reserve(items); }
  void Add(Value key, Value value) {  // The key must be new.
    meter_.Step();
    if (value.kind() >= Value::kArray)
      dict_->depth = std::max(dict_->depth, DepthAround(meter_, value));
    if (key.kind() >= Value::kArray)
      dict_->depth = std::max(dict_->depth, DepthAround(meter_, key));
    dict_->items.emplace_back(std::move(key), std::move(value));
  }
  void Assign(Value key, Value value);  // Fails for a key that Python cannot hash.
  Value Take() && { return std::move(value_); }

 private:
  Meter& meter_;
  Dict* const dict_;
  Value value_;
};

inline bool Truth(const Value& value) {
  switch (value.kind()) {
    case Value::kUndefined:
    case Value::kNone: return false;
    case Value::kBool:
    case Value::kInt: return value.integer() != 0;
    case Value::kFloat: return value.real() != 0;
    case Value::kText:
    case Value::kString: return !value.text().empty();
    case Value::kArray:
      return value.array().kind == Array::kGenerator || !value.array().items.empty();
    case Value::kDict: return !value.dict().items.empty();
    default: return true;
  }
}
// Python's name of the type, for messages: str, int, dict, ..
absl::string_view TypeName(const Value& value);
// Python's ==: 1 == 1.0 == True; containers are compared by their items.
bool Equal(Meter& meter, const Value& a, const Value& b);
// Python's <. Fails for types that have no order.
bool Less(Meter& meter, const Value& a, const Value& b);
// Returns the part of a key that Python cannot hash: a list or a dict, possibly inside a tuple;
// null if there is none.
const Value* Unhashable(Meter& meter, const Value& key);
void CheckHashable(Meter& meter, const Value& key);  // Fails if there is one; the message names it.
// Returns dict[key], or null. Fails as CheckHashable().
const Value* Find(Meter& meter, const Dict& dict, const Value& key);

}  // namespace sluice::chat
