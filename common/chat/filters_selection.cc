// Filters that read their items through an attribute, a filter or a test.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/chat/filters.h"
#include "common/chat/interpreter.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

Value IgnoreCase(const Call& call, Value value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? call.Text(Lower(value.text())) : value;
}

// Returns the key that an item is sorted or compared by: the attribute at `path`, or the item
// itself if `path` is undefined or none.
Value KeyOf(const Call& call, const Value& item, const Value& path, bool case_sensitive) {
  const bool attribute = !path.is(Value::kUndefined) && !path.is(Value::kNone);
  return IgnoreCase(call, attribute ? ReadPath(call, item, path) : item, case_sensitive);
}

// As KeyOf(); a path "a,b" sorts by a, then by b.
Value SortKey(const Call& call, const Value& item, const Value& path, bool case_sensitive) {
  if (!path.is_string() || !absl::StrContains(path.text(), ','))
    return KeyOf(call, item, path, case_sensitive);
  ArrayBuilder keys(call.meter, Array::kTuple);
  for (const absl::string_view part : absl::StrSplit(path.text(), ','))
    keys.Add(IgnoreCase(call, ReadPath(call, item, Value::Borrow(part)), case_sensitive));
  return std::move(keys).Take();
}

Value Sort(const Call& call) {
  Value owner;
  const bool reverse = call.Flag(1, false);
  std::vector<std::pair<Value, const Value*>> keyed;
  const absl::Span<const Value> items = Items(call.meter, call[0], &owner);
  for (const Value& item : items) {
    call.meter.Step();
    keyed.emplace_back(SortKey(call, item, call[3], call.Flag(2, false)), &item);
  }

  // Jinja wraps each key in a list. Python compares lists with < only at their first unequal items,
  // so equal keys of a type that has no order (dicts) do not fail.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    if (Equal(call.meter, a.first, b.first)) return false;
    return reverse ? Less(call.meter, b.first, a.first) : Less(call.meter, a.first, b.first);
  });
  ArrayBuilder sorted(call.meter, Array::kList);
  for (const auto& [key, item] : keyed) sorted.Add(*item);
  return std::move(sorted).Take();
}

Value FindExtreme(const Call& call, bool least) {
  Value owner, best_key;
  const Value* best = nullptr;
  const absl::Span<const Value> items = Items(call.meter, call[0], &owner);
  for (const Value& item : items) {
    Value key = KeyOf(call, item, call[2], call.Flag(1, false));
    if (best == nullptr ||
        (least ? Less(call.meter, key, best_key) : Less(call.meter, best_key, key))) {
      best = &item;
      best_key = std::move(key);
    }
  }
  return best != nullptr ? *best : Value();
}
Value Min(const Call& call) { return FindExtreme(call, true); }
Value Max(const Call& call) { return FindExtreme(call, false); }

Value Sum(const Call& call) {
  Value owner, sum = call.has(2) ? call[2] : Value::Int(0);
  for (const Value& item : Items(call.meter, call[0], &owner)) {
    call.meter.Step();
    sum = Arithmetic(call.meter, Operator::kAdd, std::move(sum), KeyOf(call, item, call[1], true));
  }
  return sum;
}

Value Unique(const Call& call) {
  Value owner;
  std::vector<Value> seen;
  ArrayBuilder unique(call.meter, Array::kGenerator);
  for (const Value& item : Items(call.meter, call[0], &owner)) {
    Value key = KeyOf(call, item, call[2], call.Flag(1, false));
    CheckHashable(call.meter, key);
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      call.meter.Step();
      return Equal(call.meter, key, other);
    });
    if (known) continue;
    seen.push_back(std::move(key));
    unique.Add(item);
  }
  return std::move(unique).Take();
}

// Applies the function named `args[at]`, with the arguments after it, to `item`.
Value ApplyNamed(const Call& call, size_t at, const Function* (*find)(absl::string_view),
                 absl::string_view what, const Value& item) {
  const absl::string_view name = call.Str(at);
  const Function* const function = find(name);
  if (function == nullptr) call.meter.Unsupported(absl::StrCat("the ", what, " \"", name, "\""));
  Values args;
  args.push_back(item);
  for (const Value& arg : call.args.subspan(at + 1)) args.push_back(arg);
  return Invoke(call.in, *function, std::move(args), call.keywords);
}

Value Map(const Call& call) {
  Value owner, path, otherwise;
  if (call.args.size() == 1) {
    for (const auto& [name, value] : call.keywords) {
      if (name != "attribute" && name != "default")
        call.Invalid(absl::StrCat("has no parameter ", name));
      (name == "attribute" ? path : otherwise) = value;
    }
    if (path.is(Value::kUndefined)) call.Invalid("needs an attribute or the name of a filter");
  }

  ArrayBuilder mapped(call.meter, Array::kGenerator);
  if (!Truth(call[0])) return std::move(mapped).Take();
  for (const Value& item : Items(call.meter, call[0], &owner)) {
    mapped.Add(call.args.size() == 1 ? ReadPath(call, item, path, otherwise)
                                     : ApplyNamed(call, 1, FindFilter, "filter", item));
  }
  return std::move(mapped).Take();
}

// Selects the items for which the test gives `wanted`; without a test, by their truth value.
Value SelectItems(const Call& call, bool wanted, bool attribute) {
  if (attribute && call.args.size() < 2) call.Invalid("needs an attribute");
  const size_t test = attribute ? 2 : 1;
  Value owner;
  ArrayBuilder chosen(call.meter, Array::kGenerator);
  if (!Truth(call[0])) return std::move(chosen).Take();
  for (const Value& item : Items(call.meter, call[0], &owner)) {
    call.meter.Step();
    const Value looked_at = attribute ? ReadPath(call, item, call[1]) : item;
    const Value held =
        call.args.size() > test ? ApplyNamed(call, test, FindTest, "test", looked_at) : looked_at;
    if (Truth(held) == wanted) chosen.Add(item);
  }
  return std::move(chosen).Take();
}
Value Select(const Call& call) { return SelectItems(call, true, false); }
Value Reject(const Call& call) { return SelectItems(call, false, false); }
Value SelectAttr(const Call& call) { return SelectItems(call, true, true); }
Value RejectAttr(const Call& call) { return SelectItems(call, false, true); }

constexpr Function kSelectionFilters[] = {
    {"sort", Sort, 0, {"reverse", "case_sensitive", "attribute"}},
    {"min", Min, 0, {"case_sensitive", "attribute"}},
    {"max", Max, 0, {"case_sensitive", "attribute"}},
    {"sum", Sum, 0, {"attribute", "start"}},
    {"unique", Unique, 0, {"case_sensitive", "attribute"}},
    {"map", Map, Function::kVariadic},
    {"select", Select, Function::kVariadic},
    {"reject", Reject, Function::kVariadic},
    {"selectattr", SelectAttr, Function::kVariadic},
    {"rejectattr", RejectAttr, Function::kVariadic},
};

}  // namespace

absl::Span<const Function> SelectionFilters() { return kSelectionFilters; }

Value ReadPath(const Call& call, const Value& value, const Value& path, const Value& otherwise) {
  Value result = value;
  const auto read = [&](const Value& key) {
    result = call.in.Subscript(result, key);
    if (result.is(Value::kUndefined) && !otherwise.is(Value::kUndefined)) result = otherwise;
  };
  if (!path.is_string()) {
    read(path);
    return result;
  }

  for (const absl::string_view part : absl::StrSplit(path.text(), '.')) {
    call.meter.Step();
    int64_t index = 0;
    const bool digits = !part.empty() &&
                        std::all_of(part.begin(), part.end(), absl::ascii_isdigit) &&
                        absl::SimpleAtoi(part, &index);
    read(digits ? Value::Int(index) : Value::Borrow(part));
  }
  // The name in an undefined value points into `path`, which may not live as long.
  return result.is(Value::kUndefined) ? Value() : result;
}

}  // namespace sluice::chat
