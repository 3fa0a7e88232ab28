#include "common/chat/value.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/chat/object.h"

namespace sluice::chat {

Value Value::WithCapacity(Meter& meter, size_t capacity) {
  meter.AddLiveBytes(capacity);
  void* const memory = std::malloc(kStringHeader + capacity);
  if (memory == nullptr) throw std::bad_alloc();
  static_assert(sizeof(StringHeader) == kStringHeader);
  auto* const header = new (memory) StringHeader();
  header->references = 1;
  header->capacity = static_cast<uint32_t>(capacity);
  header->meter = &meter;
  Value value(kString);
  value.counted_ = header;
  return value;
}

Value Value::Copy(Meter& meter, absl::string_view text) {
  Value value = WithCapacity(meter, text.size());
  if (!text.empty()) std::memcpy(const_cast<char*>(value.text().data()), text.data(), text.size());
  value.size_ = static_cast<uint32_t>(text.size());
  meter.WorkOnBytes(text.size());
  return value;
}

void Value::Append(Meter& meter, absl::string_view added) {
  const absl::string_view old = text();
  const size_t size = old.size() + added.size();
  meter.CheckText(size);
  if (kind_ != kString || counted_->references > 1 || header()->capacity < size) {
    // Allocate half as much again, but no spare room beyond a quarter of the limit.
    const size_t room = std::max(size, std::min(size + size / 2 + 48, kMaxTextBytes / 4));
    Value grown = WithCapacity(meter, room);
    if (!old.empty()) std::memcpy(const_cast<char*>(grown.text().data()), old.data(), old.size());
    meter.WorkOnBytes(old.size());
    grown.safe_ = safe_;
    // `added` may point into the old string, which `grown` owns from here to the end of the block.
    Swap(grown);
    if (!added.empty())
      std::memcpy(const_cast<char*>(text().data()) + old.size(), added.data(), added.size());
  } else if (!added.empty()) {
    std::memcpy(const_cast<char*>(old.data()) + old.size(), added.data(), added.size());
  }
  size_ = static_cast<uint32_t>(size);
  meter.WorkOnBytes(added.size());
}

void Value::Destroy() {
  switch (kind_) {
    case kString:
      header()->meter->SubtractLiveBytes(header()->capacity);
      std::free(counted_);
      break;
    case kArray: delete reinterpret_cast<Array*>(counted_); break;
    case kDict: delete reinterpret_cast<Dict*>(counted_); break;
    case kMethod: delete reinterpret_cast<Method*>(counted_); break;
    default: break;
  }
}

namespace {
int Depth(const Value& value) {
  switch (value.kind()) {
    case Value::kArray: return value.array().depth;
    case Value::kDict: return value.dict().depth;
    // The object of a method is never a method itself.
    case Value::kMethod: return Depth(value.method().self);
    default: return 0;
  }
}
}  // namespace

uint16_t DepthAround(Meter& meter, const Value& value) {
  const int inner = Depth(value);
  if (inner >= kMaxDepth) meter.TooDeep();
  return static_cast<uint16_t>(inner + 1);
}

Value MakeTuple(Meter& meter, std::initializer_list<Value> items) {
  ArrayBuilder tuple(meter, Array::kTuple);
  for (const Value& item : items) tuple.Add(item);
  return std::move(tuple).Take();
}

void DictBuilder::Assign(Value key, Value value) {
  if (const Value* const found = Find(meter_, *dict_, key)) {
    if (value.kind() >= Value::kArray)
      dict_->depth = std::max(dict_->depth, DepthAround(meter_, value));
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  Add(std::move(key), std::move(value));
}

absl::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Value::kUndefined: return "Undefined";
    case Value::kNone: return "NoneType";
    case Value::kBool: return "bool";
    case Value::kInt: return "int";
    case Value::kFloat: return "float";
    case Value::kText:
    case Value::kString: return "str";
    case Value::kArray: {
      constexpr absl::string_view kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                              "dict_values", "dict_items", "generator"};
      return kNames[value.array().kind];
    }
    case Value::kDict: return "dict";
    case Value::kObject: return value.object()->TypeName();
    case Value::kFunction: return "function";
    case Value::kMethod: return "method";
  }
  return "?";
}

namespace {

// Arrays are equal only to arrays of the same kind; generators and dict values only to themselves.
bool EqualArrays(Meter& meter, const Array& a, const Array& b) {
  if (&a == &b) return true;
  if (a.kind != b.kind || a.kind == Array::kGenerator || a.kind == Array::kValues ||
      a.items.size() != b.items.size())
    return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    meter.Step();
    if (!Equal(meter, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool EqualDicts(Meter& meter, const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    meter.Step();
    const Value* const other = Find(meter, b, key);
    if (other == nullptr || !Equal(meter, value, *other)) return false;
  }
  return true;
}

}  // namespace

const Value* Unhashable(Meter& meter, const Value& key) {
  if (key.is(Value::kDict)) return &key;
  if (!key.is(Value::kArray)) return nullptr;
  const Array::Kind kind = key.array().kind;
  if (kind == Array::kList || kind == Array::kKeys || kind == Array::kItems) return &key;
  if (kind != Array::kTuple) return nullptr;
  for (const Value& item : key.array().items) {
    meter.Step();
    if (const Value* const part = Unhashable(meter, item)) return part;
  }
  return nullptr;
}

void CheckHashable(Meter& meter, const Value& key) {
  if (const Value* const part = Unhashable(meter, key))
    meter.Invalid(absl::StrCat("a ", TypeName(*part), " cannot be hashed, so it cannot be a key"));
}

bool Equal(Meter& meter, const Value& a, const Value& b) {
  if (a.is_string()) {
    if (!b.is_string() || a.text().size() != b.text().size()) return false;
    meter.WorkOnBytes(a.text().size());
    return a.text() == b.text();
  }

  if (a.is_number()) {
    if (!b.is_number()) return false;
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.real() == b.real();
  }
  // Different kinds are equal only among numbers and among strings, which are handled above.
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::kUndefined:
    case Value::kNone: return true;
    case Value::kArray: return EqualArrays(meter, a.array(), b.array());
    case Value::kDict: return EqualDicts(meter, a.dict(), b.dict());
    case Value::kMethod:
      return a.method().function == b.method().function &&
             a.method().self.kind() == b.method().self.kind() &&
             a.method().self.identity() == b.method().self.identity();
    default: return a.identity() == b.identity();
  }
}

bool Less(Meter& meter, const Value& a, const Value& b) {
  meter.Step();
  if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.real() < b.real();
  if (a.is_string() && b.is_string()) {  // The order of UTF-8 bytes is that of code points.
    meter.WorkOnBytes(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();
  }

  if (a.is(Value::kArray) && b.is(Value::kArray) && a.array().kind == b.array().kind &&
      a.array().kind <= Array::kTuple) {
    const auto &x = a.array().items, &y = b.array().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      meter.Step();
      if (!Equal(meter, x[i], y[i])) return Less(meter, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  meter.Invalid(absl::StrCat("a ", TypeName(a), " and a ", TypeName(b), " have no order"));
}

const Value* Find(Meter& meter, const Dict& dict, const Value& key) {
  meter.Work(static_cast<int64_t>(dict.items.size() / 8));
  if (key.is_string()) return dict.Find(key.text());
  CheckHashable(meter, key);
  for (const auto& [k, v] : dict.items) {
    if (Equal(meter, k, key)) return &v;
  }
  return nullptr;
}

}  // namespace sluice::chat
