// Tests: `value is name`.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/chat/filters.h"
#include "common/chat/interpreter.h"
#include "common/chat/print.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

template <bool (*kHolds)(const Call&)>
Value Test(const Call& call) {
  return Value::Bool(kHolds(call));
}

template <Operator kOperator>
bool Compares(const Call& call) {
  return Compare(call.meter, kOperator, call[0], call[1]);
}

bool Defined(const Call& call) { return !call[0].is(Value::kUndefined); }
bool Undefined(const Call& call) { return call[0].is(Value::kUndefined); }
bool None(const Call& call) { return call[0].is(Value::kNone); }
bool IsString(const Call& call) { return call[0].is_string(); }
bool Number(const Call& call) { return call[0].is_number(); }
bool Integer(const Call& call) { return call[0].is(Value::kInt); }
bool Float(const Call& call) { return call[0].is(Value::kFloat); }
bool Boolean(const Call& call) { return call[0].is(Value::kBool); }
bool True(const Call& call) { return call[0].is(Value::kBool) && call[0].boolean(); }
bool False(const Call& call) { return call[0].is(Value::kBool) && !call[0].boolean(); }
bool Mapping(const Call& call) { return call[0].is(Value::kDict); }

// True for a value with a length and a subscript. As in Jinja, undefined counts too.
bool Sequence(const Call& call) {
  const Value& value = call[0];
  return value.is_string() || value.is(Value::kDict) || value.is(Value::kUndefined) ||
         (value.is(Value::kArray) && value.array().kind <= Array::kRange);
}
bool Iterable(const Call& call) {
  const Value& value = call[0];
  return value.is_string() || value.is(Value::kDict) || value.is(Value::kArray) ||
         value.is(Value::kUndefined);
}
bool Callable(const Call& call) {
  const Value& value = call[0];
  return value.is(Value::kFunction) || value.is(Value::kMethod) || value.is(Value::kUndefined) ||
         (value.is(Value::kObject) && value.object()->callable());
}

bool Divisible(const Call& call, const Value& by) {
  const Value rest = Arithmetic(call.meter, Operator::kModulo, call[0], by);
  return rest.is_number() && rest.real() == 0;
}
bool Even(const Call& call) { return Divisible(call, Value::Int(2)); }
bool Odd(const Call& call) {
  const Value rest = Arithmetic(call.meter, Operator::kModulo, call[0], Value::Int(2));
  return rest.is_number() && rest.real() == 1;
}
bool DivisibleBy(const Call& call) { return Divisible(call, call[1]); }

bool IsUpperTest(const Call& call) { return IsUpper(Str(call.meter, call[0])); }
bool IsLowerTest(const Call& call) { return IsLower(Str(call.meter, call[0])); }

// Python's `is`, as far as values here have an identity. Numbers and strings are the same if they
// are equal and of one type.
bool SameAs(const Call& call) {
  const Value &a = call[0], &b = call[1];
  if (a.is_string() && b.is_string()) return a.text() == b.text();
  if (a.kind() != b.kind()) return false;
  return a.kind() <= Value::kFloat ? Equal(call.meter, a, b) : a.identity() == b.identity();
}

bool IsFilter(const Call& call) { return FindFilter(call.Str(0)) != nullptr; }
bool IsTest(const Call& call) { return FindTest(call.Str(0)) != nullptr; }
bool Escaped(const Call& call) { return call[0].safe(); }

constexpr Function kTests[] = {
    {"defined", Test<Defined>},
    {"undefined", Test<Undefined>},
    {"none", Test<None>},
    {"string", Test<IsString>},
    {"number", Test<Number>},
    {"integer", Test<Integer>},
    {"float", Test<Float>},
    {"boolean", Test<Boolean>},
    {"true", Test<True>},
    {"false", Test<False>},
    {"mapping", Test<Mapping>},
    {"sequence", Test<Sequence>},
    {"iterable", Test<Iterable>},
    {"callable", Test<Callable>},
    {"even", Test<Even>},
    {"odd", Test<Odd>},
    {"divisibleby", Test<DivisibleBy>, 1, {"num"}},
    {"in", Test<Compares<Operator::kIn>>, 1, {"seq"}},
    {"eq", Test<Compares<Operator::kEqual>>, 1, {"b"}},
    {"equalto", Test<Compares<Operator::kEqual>>, 1, {"b"}},
    {"==", Test<Compares<Operator::kEqual>>, 1, {"b"}},
    {"ne", Test<Compares<Operator::kNotEqual>>, 1, {"b"}},
    {"!=", Test<Compares<Operator::kNotEqual>>, 1, {"b"}},
    {"lt", Test<Compares<Operator::kLess>>, 1, {"b"}},
    {"lessthan", Test<Compares<Operator::kLess>>, 1, {"b"}},
    {"<", Test<Compares<Operator::kLess>>, 1, {"b"}},
    {"le", Test<Compares<Operator::kLessEqual>>, 1, {"b"}},
    {"<=", Test<Compares<Operator::kLessEqual>>, 1, {"b"}},
    {"gt", Test<Compares<Operator::kGreater>>, 1, {"b"}},
    {"greaterthan", Test<Compares<Operator::kGreater>>, 1, {"b"}},
    {">", Test<Compares<Operator::kGreater>>, 1, {"b"}},
    {"ge", Test<Compares<Operator::kGreaterEqual>>, 1, {"b"}},
    {">=", Test<Compares<Operator::kGreaterEqual>>, 1, {"b"}},
    {"upper", Test<IsUpperTest>},
    {"lower", Test<IsLowerTest>},
    {"sameas", Test<SameAs>, 1, {"other"}},
    {"filter", Test<IsFilter>},
    {"test", Test<IsTest>},
    {"escaped", Test<Escaped>},
};

}  // namespace

const Function* FindTest(absl::string_view name) {
  for (const Function& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace sluice::chat
