#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/chat/filters.h"
#include "common/chat/interpreter.h"
#include "common/chat/print.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

Value Length(const Call& call) {
  const Value& value = call[0];
  if (value.is_string()) {
    call.meter.WorkOnBytes(value.text().size());
    return Value::Int(static_cast<int64_t>(CountCodePoints(value.text())));
  }
  if (value.is(Value::kUndefined)) return Value::Int(0);
  if (value.is(Value::kDict)) return Value::Int(static_cast<int64_t>(value.dict().items.size()));
  if (value.is(Value::kArray) && value.array().kind != Array::kGenerator)
    return Value::Int(static_cast<int64_t>(value.array().items.size()));
  call.Invalid(absl::StrCat("a ", TypeName(value), " has no length"));
}

Value ItemsFilter(const Call& call) {
  ArrayBuilder pairs(call.meter, Array::kGenerator);
  if (call[0].is(Value::kUndefined)) return std::move(pairs).Take();
  if (!call[0].is(Value::kDict))
    call.Invalid(absl::StrCat("needs a dict, got a ", TypeName(call[0])));
  for (const auto& [key, value] : call[0].dict().items)
    pairs.Add(MakeTuple(call.meter, {key, value}));
  return std::move(pairs).Take();
}

Value List(const Call& call) {
  Value owner;
  ArrayBuilder list(call.meter, Array::kList);
  for (const Value& item : Items(call.meter, call[0], &owner)) list.Add(item);
  return std::move(list).Take();
}

Value First(const Call& call) {
  if (call[0].is(Value::kArray)) {
    const Array& array = call[0].array();
    if (array.Rest().empty()) return Value();
    const Value first = array.Rest()[0];
    if (array.kind == Array::kGenerator) ++array.taken;
    return first;
  }
  if (call[0].is_string()) return call.in.Subscript(call[0], Value::Int(0));
  Value owner;
  const absl::Span<const Value> items = Items(call.meter, call[0], &owner);
  return items.empty() ? Value() : items[0];
}

Value Last(const Call& call) {
  if (call[0].is(Value::kArray) && call[0].array().kind == Array::kGenerator)
    call.Invalid("a generator has no last item; put | list before it");
  if (call[0].is_string()) return call.in.Subscript(call[0], Value::Int(-1));
  Value owner;
  const absl::Span<const Value> items = Items(call.meter, call[0], &owner);
  return items.empty() ? Value() : items.back();
}

Value Reverse(const Call& call) {
  if (call[0].is_string()) {
    const absl::string_view text = call[0].text();
    std::string out;
    out.reserve(text.size());
    call.meter.WorkOnBytes(8 * text.size());
    for (size_t end = text.size(); end > 0;) {
      size_t begin = end - 1;
      while (begin > 0 && (text[begin] & 0xc0) == 0x80) --begin;
      out.append(text.data() + begin, end - begin);
      end = begin;
    }
    return call.Text(out).MarkedSafe(call[0].safe());
  }

  const bool generator = call[0].is(Value::kArray) && call[0].array().kind == Array::kGenerator;
  Value owner;
  const absl::Span<const Value> items = Items(call.meter, call[0], &owner);
  // As in Jinja: reversed() gives an iterator, but it refuses a generator, which is made a list.
  ArrayBuilder reversed(call.meter, generator ? Array::kList : Array::kGenerator);
  for (size_t i = items.size(); i > 0; --i) reversed.Add(items[i - 1]);
  return std::move(reversed).Take();
}

Value Join(const Call& call) {
  Value owner;
  std::string out;
  const std::string separator = call.has(1) ? Str(call.meter, call[1]) : std::string();
  bool first = true;
  for (const Value& item : Items(call.meter, call[0], &owner)) {
    call.meter.Step();
    if (!first) out += separator;
    first = false;
    AppendStr(call.meter, call.has(2) ? ReadPath(call, item, call[2]) : item, &out);
    call.meter.CheckText(out.size());
  }
  return call.Text(out);
}

Value Batch(const Call& call) {
  const int64_t size = call.Int(1, 1);
  Value owner;
  const absl::Span<const Value> items = Items(call.meter, call[0], &owner);
  ArrayBuilder batches(call.meter, Array::kGenerator);
  if (size <= 0) call.Invalid(absl::StrCat("linecount is ", size, "; wanted: at least 1"));
  for (size_t begin = 0; begin < items.size(); begin += static_cast<size_t>(size)) {
    ArrayBuilder batch(call.meter, Array::kList);
    for (size_t i = begin; i < begin + static_cast<size_t>(size); ++i) {
      if (i < items.size()) batch.Add(items[i]);
      if (i >= items.size() && (!call.has(2) || call[2].is(Value::kNone))) break;
      if (i >= items.size()) batch.Add(call[2]);
    }
    batches.Add(std::move(batch).Take());
  }
  return std::move(batches).Take();
}

Value Default(const Call& call) {
  const bool missing = call[0].is(Value::kUndefined) || (call.Flag(2, false) && !Truth(call[0]));
  if (!missing) return call[0];
  return call.has(1) ? call[1] : Value::Borrow("");
}

Value DictSort(const Call& call) {
  if (!call[0].is(Value::kDict))
    call.Invalid(absl::StrCat("needs a dict, got a ", TypeName(call[0])));
  const absl::string_view by = call.Str(2, "key");
  if (by != "key" && by != "value")
    call.Invalid(absl::StrCat("by is ", by, "; wanted: key or value"));
  const bool reverse = call.Flag(3, false);
  std::vector<std::pair<Value, const std::pair<Value, Value>*>> keyed;
  for (const auto& item : call[0].dict().items) {
    const Value& key = by == "key" ? item.first : item.second;
    keyed.emplace_back(key.is_string() && !call.Flag(1, false) ? call.Text(Lower(key.text())) : key,
                       &item);
  }

  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? Less(call.meter, b.first, a.first) : Less(call.meter, a.first, b.first);
  });
  ArrayBuilder sorted(call.meter, Array::kList);
  for (const auto& [key, item] : keyed)
    sorted.Add(MakeTuple(call.meter, {item->first, item->second}));
  return std::move(sorted).Take();
}

constexpr Function kSequenceFilters[] = {
    {"length", Length},
    {"count", Length},
    {"items", ItemsFilter},
    {"list", List},
    {"first", First},
    {"last", Last},
    {"reverse", Reverse},
    {"join", Join, 0, {"d", "attribute"}},
    {"batch", Batch, 1, {"linecount", "fill_with"}},
    {"default", Default, 0, {"default_value", "boolean"}},
    {"d", Default, 0, {"default_value", "boolean"}},
    {"dictsort", DictSort, 0, {"case_sensitive", "by", "reverse"}},
};

}  // namespace

absl::Span<const Function> SequenceFilters() { return kSequenceFilters; }

}  // namespace sluice::chat
