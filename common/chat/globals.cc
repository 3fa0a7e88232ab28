// Functions that every template can call.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/chat/interpreter.h"
#include "common/chat/print.h"
#include "common/chat/strftime.h"

namespace sluice::chat {
namespace {

Value RaiseException(const Call& call) {
  const std::string message = Str(call.meter, call[0]);
  call.meter.Invalid(absl::StrCat("the template refuses: ", message));
}

Value RangeOf(const Call& call) {
  const bool single = !call.has(1);
  Array numbers(Array::kRange);
  numbers.start = single ? 0 : call.Int(0, 0);
  numbers.stop = single ? call.Int(0, 0) : call.Int(1, 0);
  numbers.step = call.Int(2, 1);
  if (numbers.step == 0) call.Invalid("the step is 0");

  // Computed with unsigned numbers, because the difference of two int64_t may overflow.
  const bool up = numbers.step > 0;
  const bool any = up ? numbers.start < numbers.stop : numbers.start > numbers.stop;
  const uint64_t start = static_cast<uint64_t>(numbers.start),
                 stop = static_cast<uint64_t>(numbers.stop),
                 step = static_cast<uint64_t>(numbers.step);
  const uint64_t count = !any ? 0
                         : up ? (stop - start - 1) / step + 1
                              : (start - stop - 1) / (0 - step) + 1;
  if (count > static_cast<uint64_t>(kMaxRange))
    call.meter.Exceeded(absl::StrCat("range of ", count, " numbers is longer than ", kMaxRange));

  ArrayBuilder range(call.meter, Array::kRange);
  range.array().start = numbers.start, range.array().stop = numbers.stop,
  range.array().step = numbers.step;
  for (uint64_t i = 0; i < count; ++i)
    range.Add(Value::Int(static_cast<int64_t>(start + i * step)));
  return std::move(range).Take();
}

// Calls `add` with the pairs of which dict() and namespace() are made: those of a dict, then the
// named arguments.
template <typename Add>
void AddPairs(const Call& call, Add add) {
  if (call.args.size() > 1)
    call.Invalid(absl::StrCat("takes at most 1 argument without a name, got ", call.args.size()));
  if (call.args.size() == 1) {
    if (!call[0].is(Value::kDict))
      call.Invalid(absl::StrCat("needs a dict, got a ", TypeName(call[0])));
    for (const auto& [key, value] : call[0].dict().items) add(key, value);
  }
  // The names belong to the program, which outlives the rendering, so they are borrowed.
  for (const auto& [name, value] : call.keywords) add(Value::Borrow(name), value);
}

Value DictOf(const Call& call) {
  DictBuilder dict(call.meter);
  AddPairs(call, [&](const Value& key, const Value& value) { dict.Assign(key, value); });
  return std::move(dict).Take();
}

Value NamespaceOf(const Call& call) {
  auto* const space = call.in.New<Namespace>();
  AddPairs(call, [&](const Value& key, const Value& value) {
    if (!key.is_string()) call.Invalid(absl::StrCat("a key is a ", TypeName(key), "; wanted: str"));
    space->Set(call.meter, key, value);
  });
  return Value::Of(space);
}

Value CyclerOf(const Call& call) {
  if (call.args.empty() || !call.keywords.empty()) call.Invalid("needs at least one value");
  return Value::Of(call.in.New<Cycler>(Values(call.args.begin(), call.args.end())));
}

Value JoinerOf(const Call& call) {
  return Value::Of(call.in.New<Joiner>(call.has(0) ? call[0] : Value::Borrow(", ")));
}

Value StrftimeNow(const Call& call) {
  return call.Text(FormatTime(call.meter, call.in.now(), call.Str(0)));
}

Value Lipsum(const Call& call) { call.meter.Unsupported("lipsum()"); }

constexpr Function kGlobals[] = {
    {"raise_exception", RaiseException, 1, {"message"}},
    {"range", RangeOf, 1, {"start", "stop", "step"}},
    {"dict", DictOf, Function::kVariadic},
    {"namespace", NamespaceOf, Function::kVariadic},
    {"strftime_now", StrftimeNow, 1, {"format"}},
    {"cycler", CyclerOf, Function::kVariadic},
    {"joiner", JoinerOf, 0, {"sep"}},
    {"lipsum", Lipsum, Function::kVariadic},
};

}  // namespace

absl::Span<const Function> Globals() { return kGlobals; }

}  // namespace sluice::chat
