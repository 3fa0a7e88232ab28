// Python's operators and slices.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/chat/interpreter.h"
#include "common/chat/print.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

[[noreturn]] void FailOperands(Meter& meter, Operator op, const Value& a, const Value& b) {
  const auto shown = [&](const Value& value) -> std::string {
    if (value.is(Value::kUndefined))
      return absl::StrCat(value.text(), value.text().empty() ? "" : " ", "(undefined)");
    return std::string(TypeName(value));
  };
  meter.Invalid(
      absl::StrCat("cannot apply ", OperatorName(op), " to ", shown(a), " and ", shown(b)));
}

[[noreturn]] void FailOverflow(Meter& meter, Operator op, int64_t a, int64_t b) {
  meter.Invalid(absl::StrCat(a, " ", OperatorName(op), " ", b, " is beyond 64 bits"));
}

Value ApplyToIntegers(Meter& meter, Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) FailOverflow(meter, op, a, b);
      return Value::Int(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) FailOverflow(meter, op, a, b);
      return Value::Int(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) FailOverflow(meter, op, a, b);
      return Value::Int(result);
    case Operator::kDivide:
      if (b == 0) meter.Invalid(absl::StrCat(a, " / 0: division by zero"));
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (b == 0) meter.Invalid(absl::StrCat(a, " ", OperatorName(op), " 0: division by zero"));
      // In C++, INT64_MIN / -1 is undefined.
      if (b == -1)
        return op == Operator::kModulo ? Value::Int(0)
                                       : ApplyToIntegers(meter, Operator::kSubtract, 0, a);
      int64_t quotient = a / b, rest = a % b;  // C++ rounds to zero, Python down.
      if (rest != 0 && (rest < 0) != (b < 0)) --quotient, rest += b;
      return Value::Int(op == Operator::kModulo ? rest : quotient);
    }
    default: {  // kPower
      if (b < 0) {
        if (a == 0) meter.Invalid("0 ** a negative number: division by zero");
        return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      result = 1;
      int64_t base = a;
      for (int64_t rest = b; rest > 0; rest >>= 1) {
        if ((rest & 1) && __builtin_mul_overflow(result, base, &result))
          FailOverflow(meter, op, a, b);
        if (rest > 1 && __builtin_mul_overflow(base, base, &base)) FailOverflow(meter, op, a, b);
      }
      return Value::Int(result);
    }
  }
}

Value ApplyToFloats(Meter& meter, Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd: return Value::Float(a + b);
    case Operator::kSubtract: return Value::Float(a - b);
    case Operator::kMultiply: return Value::Float(a * b);
    case Operator::kPower: {
      const double power = std::pow(a, b);
      if (std::isfinite(a) && std::isfinite(b) && !std::isfinite(power))
        meter.Invalid(absl::StrCat(a, " ** ", b, " is not a finite number"));
      return Value::Float(power);
    }
    default: break;
  }

  if (b == 0) meter.Invalid(absl::StrCat(a, " ", OperatorName(op), " 0: division by zero"));
  if (op == Operator::kDivide) return Value::Float(a / b);

  double rest = std::fmod(a, b);  // As CPython's float_divmod.
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b, quotient -= 1;
  if (rest == 0) rest = std::copysign(0.0, b);
  if (op == Operator::kModulo) return Value::Float(rest);
  if (quotient == 0) return Value::Float(std::copysign(0.0, a / b));
  const double floor = std::floor(quotient);
  return Value::Float(quotient - floor > 0.5 ? floor + 1 : floor);
}

Value AddTexts(Meter& meter, Value a, const Value& b) {
  const bool safe = a.safe() || b.safe();
  if (safe && !a.safe()) a = Value::Copy(meter, EscapeHtml(a.text()));
  if (safe && !b.safe()) {
    a.Append(meter, EscapeHtml(b.text()));
  } else {
    a.Append(meter, b.text());
  }
  return std::move(a).MarkedSafe(safe);
}

Value AddArrays(Meter& meter, const Array& a, const Array& b) {
  ArrayBuilder sum(meter, a.kind);
  for (const Array* part : {&a, &b}) {
    for (const Value& item : part->items) sum.Add(item);
  }
  return std::move(sum).Take();
}

Value Repeat(Meter& meter, const Value& value, int64_t times) {
  if (times < 0) times = 0;
  if (value.is_string()) {
    if (value.text().empty() || times == 0) return Value::Borrow("");
    if (static_cast<uint64_t>(times) > kMaxTextBytes) meter.CheckText(kMaxTextBytes + 1);
    meter.CheckText(value.text().size() * static_cast<size_t>(times));
    std::string text;
    for (int64_t i = 0; i < times; ++i) absl::StrAppend(&text, value.text());
    return Value::Copy(meter, text).MarkedSafe(value.safe());
  }

  ArrayBuilder product(meter, value.array().kind);
  for (int64_t i = 0; i < times && !value.array().items.empty(); ++i) {
    for (const Value& item : value.array().items) product.Add(item);
  }
  return std::move(product).Take();
}

bool IsRepeatable(const Value& value) {
  return value.is_string() || (value.is(Value::kArray) && value.array().kind <= Array::kTuple);
}

// The indexes of a slice, as Python's slice.indices() gives them: `count` indexes from `begin` on,
// `step` apart. They end before `stop` is reached.
struct Range {
  int64_t begin, stop, step, count;
};
Range ResolveSlice(Meter& meter, int64_t size, const Value& start, const Value& stop,
                   const Value& step) {
  // As Python does, clip the bounds to the length; negative ones count from the end.
  const int64_t by = step.is(Value::kUndefined) ? 1 : step.integer();
  if (by == 0) meter.Invalid("the step of a slice is 0");
  const int64_t low = by < 0 ? -1 : 0, high = by < 0 ? size - 1 : size;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is(Value::kUndefined)) return otherwise;
    const int64_t i = value.integer();
    return i < 0 ? std::max(i < -size ? low : i + size, low) : std::min(i, high);
  };
  Range range{bound(start, by < 0 ? high : low), bound(stop, by < 0 ? low : high), by, 0};
  const int64_t span = by < 0 ? range.begin - range.stop : range.stop - range.begin;
  const uint64_t width = by < 0 ? 0 - static_cast<uint64_t>(by) : static_cast<uint64_t>(by);
  if (span > 0) range.count = static_cast<int64_t>((static_cast<uint64_t>(span) - 1) / width) + 1;
  return range;
}

Value SliceText(Meter& meter, const Value& value, const Value& start, const Value& stop,
                const Value& step) {
  const absl::string_view text = value.text();
  meter.WorkOnBytes(text.size());
  const bool ascii = IsAscii(text);
  const Range range = ResolveSlice(
      meter, static_cast<int64_t>(ascii ? text.size() : CountCodePoints(text)), start, stop, step);
  if (range.count == 0) return Value::Borrow("");
  if (range.step == 1) {
    const size_t begin =
        ascii ? static_cast<size_t>(range.begin) : ByteOf(text, static_cast<size_t>(range.begin));
    const size_t size = ascii ? static_cast<size_t>(range.count)
                              : ByteOf(text.substr(begin), static_cast<size_t>(range.count));
    if (value.is(Value::kText))
      return Value::Borrow(text.substr(begin, size)).MarkedSafe(value.safe());
    return Value::Copy(meter, text.substr(begin, size)).MarkedSafe(value.safe());
  }

  meter.Step(static_cast<int64_t>(text.size()));
  const std::vector<absl::string_view> points = SplitCodePoints(text);
  std::string out;
  for (int64_t i = 0; i < range.count; ++i)
    absl::StrAppend(&out, points[range.begin + i * range.step]);
  return Value::Copy(meter, out).MarkedSafe(value.safe());
}

}  // namespace

Value Arithmetic(Meter& meter, Operator op, Value a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return ApplyToIntegers(meter, op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return ApplyToFloats(meter, op, a.real(), b.real());
  if (op == Operator::kAdd) {
    if (a.is_string() && b.is_string()) return AddTexts(meter, std::move(a), b);
    if (a.is(Value::kArray) && b.is(Value::kArray) && a.array().kind == b.array().kind &&
        a.array().kind <= Array::kTuple)
      return AddArrays(meter, a.array(), b.array());
  } else if (op == Operator::kMultiply) {
    if (IsRepeatable(a) && b.is_integer()) return Repeat(meter, a, b.integer());
    if (a.is_integer() && IsRepeatable(b)) return Repeat(meter, b, a.integer());
  } else if (op == Operator::kModulo && a.is_string()) {
    return Value::Copy(meter, FormatPercent(meter, a.text(), b));
  }
  FailOperands(meter, op, a, b);
}

bool Compare(Meter& meter, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual: return Equal(meter, a, b);
    case Operator::kNotEqual: return !Equal(meter, a, b);
    case Operator::kIn: return Contains(meter, b, a);
    case Operator::kNotIn: return !Contains(meter, b, a);
    case Operator::kLess: return Less(meter, a, b);
    case Operator::kGreater: return Less(meter, b, a);
    default: break;
  }
  if (a.is(Value::kFloat) && std::isnan(a.real())) return false;
  if (b.is(Value::kFloat) && std::isnan(b.real())) return false;
  return op == Operator::kLessEqual ? !Less(meter, b, a) : !Less(meter, a, b);
}

bool Contains(Meter& meter, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string())
      meter.Invalid(absl::StrCat("in: a str holds only a str, not a ", TypeName(item)));
    meter.WorkOnBytes(container.text().size());
    return FindText(container.text(), item.text()) != absl::string_view::npos;
  }

  if (container.is(Value::kDict)) return Find(meter, container.dict(), item) != nullptr;
  if (container.is(Value::kArray)) {
    for (const Value& candidate : container.array().Rest()) {
      meter.Step();
      if (Equal(meter, candidate, item)) return true;
    }
    return false;
  }
  if (container.is(Value::kUndefined)) return false;  // Jinja's undefined is an empty sequence.
  meter.Invalid(absl::StrCat("in needs a list, a dict or a str, got a ", TypeName(container)));
}

Value Negate(Meter& meter, const Value& value) {
  if (value.is(Value::kFloat)) return Value::Float(-value.real());
  if (value.is_integer()) return ApplyToIntegers(meter, Operator::kSubtract, 0, value.integer());
  meter.Invalid(
      absl::StrCat("- needs a number, got ", value.is(Value::kUndefined)
                                                 ? absl::StrCat(value.text(), " (undefined)")
                                                 : std::string(TypeName(value))));
}

Value Slice(Meter& meter, const Value& value, const Value& start, const Value& stop,
            const Value& step) {
  if (value.is_string()) return SliceText(meter, value, start, stop, step);
  const Array& array = value.array();
  const Range range =
      ResolveSlice(meter, static_cast<int64_t>(array.items.size()), start, stop, step);
  ArrayBuilder part(meter, array.kind);
  for (int64_t i = 0; i < range.count; ++i) part.Add(array.items[range.begin + i * range.step]);
  if (array.kind == Array::kRange) {
    part.array().start = array.start + range.begin * array.step;
    part.array().stop = array.start + range.stop * array.step;
    part.array().step = range.step * array.step;
  }
  return std::move(part).Take();
}

absl::Span<const Value> Items(Meter& meter, const Value& value, Value* owner) {
  switch (value.kind()) {
    case Value::kUndefined: return {};
    case Value::kArray: {
      // A generator gives its items once.
      const Array& array = value.array();
      const absl::Span<const Value> rest = array.Rest();
      if (array.kind == Array::kGenerator) array.taken = static_cast<uint32_t>(array.items.size());
      return rest;
    }
    case Value::kDict: {
      ArrayBuilder keys(meter, Array::kKeys);
      for (const auto& [key, item] : value.dict().items) keys.Add(key);
      *owner = std::move(keys).Take();
      return owner->array().items;
    }
    case Value::kText:
    case Value::kString: {
      ArrayBuilder points(meter, Array::kList);
      const absl::string_view text = value.text();
      for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
        NextCodePoint(text, &end);
        const absl::string_view point = text.substr(begin, end - begin);
        points.Add(value.is(Value::kText) ? Value::Borrow(point) : Value::Copy(meter, point));
      }
      *owner = std::move(points).Take();
      return owner->array().items;
    }
    default: meter.Invalid(absl::StrCat("a ", TypeName(value), " cannot be iterated over"));
  }
}

}  // namespace sluice::chat
