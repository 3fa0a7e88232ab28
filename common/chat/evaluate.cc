// The evaluation of expressions.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/chat/interpreter.h"
#include "common/chat/print.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

// Describes a value for a message: its type, and the value itself if it is short.
std::string ShowValue(Interpreter& in, const Value& value) {
  if (value.is(Value::kUndefined))
    return absl::StrCat(value.text().empty() ? "the value" : value.text(), " is undefined");
  std::string text(TypeName(value));
  if (value.is_number() || value.is_string())
    absl::StrAppend(&text, " ", Repr(in.meter(), value).substr(0, 60));
  return text;
}

bool HasMethods(const Value& value) {
  return value.is_string() || value.is(Value::kDict) ||
         (value.is(Value::kArray) && value.array().kind <= Array::kRange) || value.is_number();
}
Type TypeOf(const Value& value) {  // `value` must be of a type that has methods.
  if (value.is(Value::kArray))
    return value.array().kind == Array::kRange ? Type::kRange : Type::kList;
  return value.is_string() ? Type::kStr : value.is(Value::kDict) ? Type::kDict : Type::kNumber;
}

// Whether the expression contains no variable and no call.
bool IsConstant(const Expression& e) {
  if (e.kind == Expression::kName || e.kind == Expression::kCall) return false;
  return absl::c_all_of(e.operands,
                        [](const ExpressionPtr& operand) {
                          return operand == nullptr || IsConstant(*operand);
                        }) &&
         absl::c_all_of(e.keywords,
                        [](const auto& keyword) { return IsConstant(*keyword.second); });
}

}  // namespace

const Value& Interpreter::Read(const Expression& e, Value* made) {
  switch (e.kind) {
    case Expression::kLiteral: Enter(e); return e.value;
    case Expression::kName: Enter(e); return Lookup(e.symbol);
    case Expression::kAttribute: {
      Enter(e);
      const Value& object = Read(*e.operands[0], made);
      meter_.at = e.at;
      if (object.is(Value::kDict) && e.plain_in_dicts) {
        const Value* const found = Find(meter_, object.dict(), Value::Borrow(e.text));
        return found != nullptr ? *found : *made = Value::Undefined(e.text);
      }
      return *made = EvalAttribute(e, object);
    }
    case Expression::kSubscript: {
      // Evaluating the key could move the object to which `object` below refers.
      if (e.operands[1]->kind != Expression::kLiteral) break;
      Enter(e);
      const Value &object = Read(*e.operands[0], made), &key = e.operands[1]->value;
      Enter(*e.operands[1]);
      meter_.at = e.at;
      if (object.is(Value::kDict)) {
        if (const Value* const found = Find(meter_, object.dict(), key)) return *found;
      }
      return *made = Subscript(object, key);
    }
    default: break;
  }
  return *made = Eval(e);
}

bool Interpreter::EvalTruth(const Expression& e) {
  switch (e.kind) {
    case Expression::kNot: Enter(e); return !EvalTruth(*e.operands[0]);
    case Expression::kCompare: Enter(e); return EvalCompare(e);
    case Expression::kTest: Enter(e); return EvalTest(e);
    case Expression::kAnd:
    case Expression::kOr: {
      Enter(e);
      const bool enough = e.kind == Expression::kOr;
      for (const ExpressionPtr& operand : e.operands) {
        if (EvalTruth(*operand) == enough) return enough;
      }
      return !enough;
    }
    default: {
      Value made;
      return Truth(Read(e, &made));
    }
  }
}

Value Interpreter::Eval(const Expression& e) {
  switch (e.kind) {
    case Expression::kLiteral:
    case Expression::kName:
    case Expression::kAttribute: {
      Value made;
      const Value& read = Read(e, &made);
      return &read == &made ? std::move(made) : read;
    }
    case Expression::kNot:
    case Expression::kCompare:
    case Expression::kTest: return Value::Bool(EvalTruth(e));
    default: break;
  }

  Enter(e);
  switch (e.kind) {
    case Expression::kSubscript: {
      const Value object = Eval(*e.operands[0]);
      Value made;
      const Value& key = Read(*e.operands[1], &made);
      meter_.at = e.at;
      return Subscript(object, key);
    }
    case Expression::kSlice: return EvalSlice(e);
    case Expression::kList:
    case Expression::kTuple: {
      ArrayBuilder array(meter_, e.kind == Expression::kList ? Array::kList : Array::kTuple);
      for (const ExpressionPtr& item : e.operands) array.Add(Eval(*item));
      return std::move(array).Take();
    }
    case Expression::kDict: return EvalDict(e);
    case Expression::kNegate:
    case Expression::kPlus: {
      const Value value = Eval(*e.operands[0]);
      meter_.at = e.at;
      if (e.kind == Expression::kNegate) return Negate(meter_, value);
      if (!value.is_number())
        meter_.Invalid(absl::StrCat("+ needs a number, got ", ShowValue(*this, value)));
      return value.is(Value::kBool) ? Value::Int(value.integer()) : value;
    }
    case Expression::kChain: return EvalChain(e, 0, Eval(*e.operands[0]));
    case Expression::kConcat: return EvalConcat(e);
    case Expression::kAnd:
    case Expression::kOr: {
      Value value;
      for (const ExpressionPtr& operand : e.operands) {
        value = Eval(*operand);
        if (Truth(value) == (e.kind == Expression::kOr)) break;
      }
      return value;
    }
    case Expression::kIf:
      if (EvalTruth(*e.operands[0])) return Eval(*e.operands[1]);
      return e.operands[2] != nullptr ? Eval(*e.operands[2]) : Value();
    case Expression::kFilter: return EvalFunction(e);
    case Expression::kCall: return EvalCall(e, {});
    default: break;  // Handled above.
  }
  return Value();
}

Value Interpreter::EvalChain(const Expression& e, size_t done, Value value) {
  for (size_t i = done; i < e.operators.size(); ++i) {
    Value made;
    const Value& right = Read(*e.operands[i + 1], &made);
    meter_.at = e.at;
    value = Arithmetic(meter_, e.operators[i], std::move(value), right);
  }
  return value;
}

Value Interpreter::EvalConcat(const Expression& e) {
  std::string text;
  for (const ExpressionPtr& operand : e.operands) {
    Value made;
    const Value& value = Read(*operand, &made);
    meter_.at = e.at;
    AppendStr(meter_, value, &text);
  }
  return Value::Copy(meter_, text);
}

Value Interpreter::EvalDict(const Expression& e) {
  DictBuilder dict(meter_);
  for (size_t i = 0; i < e.operands.size(); i += 2) {
    Value key = Eval(*e.operands[i]);
    Value value = Eval(*e.operands[i + 1]);
    meter_.at = e.at;
    dict.Assign(std::move(key), std::move(value));
  }
  return std::move(dict).Take();
}

bool Interpreter::EvalCompare(const Expression& e) {
  const Expression& second = *e.operands[1];
  Value made;
  // The most frequent case: a literal on the right. Its evaluation does not move the left value, so
  // that is not copied.
  if (e.operators.size() == 1 && second.kind == Expression::kLiteral) {
    const Value& left = Read(*e.operands[0], &made);
    Enter(second);
    meter_.at = e.at;
    return Compare(meter_, e.operators[0], left, second.value);
  }

  Value left = Eval(*e.operands[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    const Value& right = Read(*e.operands[i + 1], &made);
    meter_.at = e.at;
    if (!Compare(meter_, e.operators[i], left, right)) return false;
    left = right;
  }
  return true;
}

// Returns what Python's type has under this name: the bound method, or undefined if templates may
// not use it. nullopt: the type has no attribute of this name.
std::optional<Value> Interpreter::FindMember(const Value& object, absl::string_view name,
                                             const Function* method, Builtin builtin) {
  if (method != nullptr) {
    auto* const bound = new Method;
    bound->self = object;
    bound->function = method;
    return Value::Of(bound);
  }
  if (builtin == Builtin::kUnbuilt)
    meter_.Unsupported(absl::StrCat("the attribute ", name, " of ", TypeName(object)));
  if (builtin == Builtin::kForbidden) return Value();
  return std::nullopt;
}

// As in Jinja, an attribute of Python's type comes before a key of a dict, so `d.items` is the
// method.
Value Interpreter::EvalAttribute(const Expression& e, const Value& object) {
  if (HasMethods(object)) {
    const auto type = static_cast<int>(TypeOf(object));
    if (std::optional<Value> member = FindMember(object, e.text, e.methods[type], e.builtins[type]))
      return *std::move(member);
  }

  if (object.is(Value::kDict)) {
    meter_.Work(static_cast<int64_t>(object.dict().items.size() / 8));
    const Value* const found = object.dict().Find(e.text);
    return found != nullptr ? *found : Value::Undefined(e.text);
  }

  if (object.is(Value::kUndefined))
    meter_.Invalid(
        absl::StrCat("cannot read the attribute ", e.text, ": ", ShowValue(*this, object)));
  if (object.is(Value::kObject)) return object.object()->Attribute(*this, e.text);
  return Value::Undefined(e.text);
}

// As Jinja's Environment.getitem: returns the item. If Python raises an error, returns the
// attribute named by a string key, else undefined.
Value Interpreter::Subscript(const Value& value, const Value& key) {
  if (value.is(Value::kUndefined))
    meter_.Invalid(absl::StrCat("cannot read an item: ", ShowValue(*this, value)));
  if (value.is(Value::kDict) && Unhashable(meter_, key) == nullptr) {
    if (const Value* const found = Find(meter_, value.dict(), key)) return *found;
  }

  if (key.is_integer()) return ItemAt(value, key.integer());
  if (!key.is_string()) return Value();
  if (value.is(Value::kObject)) return value.object()->Attribute(*this, key.text());
  if (HasMethods(value)) {
    const Type type = TypeOf(value);
    if (std::optional<Value> member = FindMember(value, key.text(), FindMethod(type, key.text()),
                                                 PythonBuiltin(type, key.text())))
      return *std::move(member);
  }
  return key.is(Value::kText) ? Value::Undefined(key.text()) : Value();
}

// Returns item `i` of a list, tuple, range or text, counted from the end if negative; undefined if
// there is none.
Value Interpreter::ItemAt(const Value& value, int64_t i) {
  if (value.is(Value::kArray) && value.array().kind <= Array::kRange) {
    const auto& items = value.array().items;
    if (i < 0) i += static_cast<int64_t>(items.size());
    return i >= 0 && i < static_cast<int64_t>(items.size()) ? items[i] : Value();
  }

  if (!value.is_string()) return Value();
  const absl::string_view text = value.text();
  meter_.WorkOnBytes(text.size());
  if (i < 0) i += static_cast<int64_t>(CountCodePoints(text));
  if (i < 0 || i >= static_cast<int64_t>(text.size())) return Value();

  size_t end = ByteOf(text, static_cast<size_t>(i));
  const size_t begin = end;
  if (begin >= text.size()) return Value();
  NextCodePoint(text, &end);
  return Value::Copy(meter_, text.substr(begin, end - begin)).MarkedSafe(value.safe());
}

Value Interpreter::EvalSlice(const Expression& e) {
  const Value object = Eval(*e.operands[0]);
  Value bounds[3];
  const Value* wrong = nullptr;
  // A missing bound, or none, is undefined. A bound of another type is an error only if the slice
  // is not constant.
  for (int i = 0; i < 3; ++i) {
    if (e.operands[i + 1] == nullptr) continue;
    bounds[i] = Eval(*e.operands[i + 1]);
    if (bounds[i].is(Value::kNone)) {
      bounds[i] = Value();
    } else if (!bounds[i].is_integer()) {
      wrong = &bounds[i];
    }
  }

  meter_.at = e.at;
  if (object.is(Value::kUndefined))
    meter_.Invalid(absl::StrCat("cannot slice: ", ShowValue(*this, object)));
  const bool sliceable =
      object.is_string() || (object.is(Value::kArray) && object.array().kind <= Array::kRange);
  if (sliceable && wrong == nullptr) return Slice(meter_, object, bounds[0], bounds[1], bounds[2]);
  // Jinja evaluates constant expressions ahead of time, and there a failed slice is undefined, as a
  // failed subscript is.
  if (IsConstant(e)) return Value();
  meter_.Invalid(sliceable ? absl::StrCat("a slice needs integers, got ", ShowValue(*this, *wrong))
                           : absl::StrCat("a ", TypeName(object), " cannot be sliced"));
}

void Interpreter::AddArguments(const Expression& e, Values* args) {
  for (size_t i = 1; i < e.operands.size(); ++i) args->push_back(Eval(*e.operands[i]));
}

void Interpreter::AddKeywords(const Expression& e, Keywords* keywords) {
  for (const auto& [name, value] : e.keywords) keywords->emplace_back(name, Eval(*value));
}

bool Interpreter::EvalTest(const Expression& e) {
  const Function& test = *e.function;
  // Most tests take no argument. Then the value need not be copied into a list of arguments.
  if (e.operands.size() > 1 || !e.keywords.empty() || test.required != 0 ||
      test.parameter_count() > 0)
    return Truth(EvalFunction(e)) != e.negated;
  Value made;
  const Value& value = Read(*e.operands[0], &made);
  meter_.at = e.at;
  meter_.Step();
  return Truth(test.run(Call{*this, meter_, test, absl::MakeConstSpan(&value, 1), {}})) !=
         e.negated;
}

Value Interpreter::EvalFunction(const Expression& e) {
  Values args;
  args.push_back(e.operands[0] != nullptr ? Eval(*e.operands[0]) : std::move(filter_input_));
  Keywords keywords;
  AddArguments(e, &args);
  AddKeywords(e, &keywords);
  meter_.at = e.at;
  return Invoke(*this, *e.function, std::move(args), keywords);
}

// `keywords` are those that a call block adds to the call's own.
Value Interpreter::EvalCall(const Expression& e, Keywords keywords) {
  const Expression& callee = *e.operands[0];
  Values args;
  if (callee.kind != Expression::kAttribute) {
    const Value value = Eval(callee);
    AddArguments(e, &args);
    AddKeywords(e, &keywords);
    meter_.at = e.at;
    return CallValue(value, std::move(args), std::move(keywords));
  }

  // A method call is the most frequent case; it needs no value for the bound method.
  Value object = Eval(*callee.operands[0]);
  meter_.at = callee.at;
  const Function* const method =
      HasMethods(object) ? callee.methods[static_cast<int>(TypeOf(object))] : nullptr;
  if (method != nullptr) {
    args.push_back(std::move(object));
    AddArguments(e, &args);
    AddKeywords(e, &keywords);
    meter_.at = callee.at;
    return Invoke(*this, *method, std::move(args), keywords);
  }

  const Value value = EvalAttribute(callee, object);
  AddArguments(e, &args);
  AddKeywords(e, &keywords);
  meter_.at = callee.at;
  if (!value.is(Value::kUndefined)) return CallValue(value, std::move(args), std::move(keywords));
  if (object.is(Value::kObject))
    return object.object()->CallMethod(*this, callee.text, std::move(args), keywords);
  meter_.Invalid(absl::StrCat("a ", TypeName(object), " has no method ", callee.text));
}

Value Interpreter::CallValue(const Value& callee, Values args, Keywords keywords) {
  meter_.Step();
  switch (callee.kind()) {
    case Value::kFunction:
      return Invoke(*this, *callee.function(), std::move(args), keywords, /*with_self=*/false);
    case Value::kObject: return callee.object()->Call(*this, std::move(args), std::move(keywords));
    case Value::kMethod: {
      args.insert(args.begin(), callee.method().self);
      return Invoke(*this, *callee.method().function, std::move(args), keywords);
    }
    default: meter_.Invalid(absl::StrCat("cannot call: ", ShowValue(*this, callee)));
  }
}

}  // namespace sluice::chat
