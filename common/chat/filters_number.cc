#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/chat/filters.h"
#include "common/chat/interpreter.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

// Removes the underscores. Returns false if one of them does not stand between two digits.
bool RemoveUnderscores(bool (*is_digit)(unsigned char), std::string* text) {
  for (size_t i = 0; i < text->size(); ++i) {
    if ((*text)[i] != '_') continue;
    if (i == 0 || i + 1 == text->size() || !is_digit((*text)[i - 1]) || !is_digit((*text)[i + 1]))
      return false;
  }
  text->erase(std::remove(text->begin(), text->end(), '_'), text->end());
  return true;
}

// Returns the text without the space around it, and with ASCII digits for all decimal digits.
std::string NormalizeNumber(absl::string_view text) {
  text = StripSpace(text, kBoth);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const int digit = DecimalValue(NextCodePoint(text, &at));
    if (digit >= 0) out.push_back(static_cast<char>('0' + digit));
    else absl::StrAppend(&out, text.substr(begin, at - begin));
  }
  return out;
}

// Python's float(text). Returns false if the text is not a number.
bool ParseFloat(absl::string_view text, double* value) {
  std::string plain = NormalizeNumber(text);
  if (!RemoveUnderscores(absl::ascii_isdigit, &plain)) return false;
  // strtod also reads hexadecimal numbers and nan(..), which Python refuses.
  if (plain.empty() || plain.find_first_of("xX") != std::string::npos ||
      plain.find('(') != std::string::npos)
    return false;
  char* end = nullptr;
  *value = std::strtod(plain.c_str(), &end);
  return end == plain.c_str() + plain.size() && !absl::ascii_isspace(plain[0]);
}

// Python's int(text, base). Returns false if the text is not an integer. Fails if the integer is
// beyond 64 bits.
bool ParseInt(const Call& call, absl::string_view text, int64_t base, int64_t* value) {
  std::string plain = absl::AsciiStrToLower(NormalizeNumber(text));
  const bool minus = absl::StartsWith(plain, "-");
  if (minus || absl::StartsWith(plain, "+")) plain.erase(0, 1);
  for (const auto& [prefix, of] :
       {std::pair<absl::string_view, int64_t>{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if (!absl::StartsWith(plain, prefix) || (base != of && base != 0)) continue;
    // An underscore may follow the prefix too.
    plain.erase(0, absl::StartsWith(plain.substr(2), "_") ? 3 : 2);
    base = of;
  }
  if (!RemoveUnderscores(absl::ascii_isalnum, &plain)) return false;
  // from_chars would accept another sign.
  if (plain.empty() || plain[0] == '-') return false;
  // The least integer is read with its sign, because its absolute value is beyond 64 bits.
  if (minus) plain.insert(0, "-");
  const auto [stop, error] = std::from_chars(plain.data(), plain.data() + plain.size(), *value,
                                             static_cast<int>(base == 0 ? 10 : base));
  if (stop != plain.data() + plain.size()) return false;
  if (error == std::errc::result_out_of_range)
    call.Invalid(
        absl::StrCat(plain.substr(0, 40), plain.size() > 40 ? ".." : "", " is beyond 64 bits"));
  return error == std::errc();
}

Value FromDouble(const Call& call, double value, const Value& otherwise) {
  if (!std::isfinite(value)) return otherwise;
  if (value < -0x1p63 || value >= 0x1p63) call.Invalid(absl::StrCat(value, " is beyond 64 bits"));
  return Value::Int(static_cast<int64_t>(value));
}

void CheckDefined(const Call& call) {
  if (!call.has(0))
    call.Invalid(
        absl::StrCat(call[0].text(), call[0].text().empty() ? "the value" : "", " is undefined"));
}

Value ToInt(const Call& call) {
  const Value otherwise = call.has(1) ? call[1] : Value::Int(0);
  const int64_t base = call.Int(2, 10);
  if (base != 0 && (base < 2 || base > 36)) return otherwise;
  if (call[0].is_integer()) return Value::Int(call[0].integer());
  if (call[0].is(Value::kFloat)) return FromDouble(call, call[0].real(), otherwise);
  CheckDefined(call);
  if (!call[0].is_string()) return otherwise;
  int64_t integer = 0;
  if (ParseInt(call, call[0].text(), base, &integer)) return Value::Int(integer);
  double real = 0;
  return ParseFloat(call[0].text(), &real) ? FromDouble(call, real, otherwise) : otherwise;
}

Value ToFloat(const Call& call) {
  double real = 0;
  if (call[0].is_number()) return Value::Float(call[0].real());
  if (call[0].is_string() && ParseFloat(call[0].text(), &real)) return Value::Float(real);
  CheckDefined(call);
  return call.has(1) ? call[1] : Value::Float(0);
}

Value Abs(const Call& call) {
  if (call[0].is(Value::kFloat)) return Value::Float(std::abs(call[0].real()));
  if (!call[0].is_integer())
    call.Invalid(absl::StrCat("needs a number, got a ", TypeName(call[0])));
  return call[0].integer() < 0 ? Negate(call.meter, call[0]) : Value::Int(call[0].integer());
}

// Python's round(): rounds the exact value of `value` to `digits` decimal places, ties to even.
double RoundHalfEven(double value, int64_t digits) {
  // Beyond 320 places, rounding changes no double above 1e-300; below -308, each becomes 0. So the
  // text has at most 309 + 320 digits, which `buffer` holds.
  if (!std::isfinite(value) || digits > 320) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(value / scale) * scale;
  }
  char buffer[700];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(digits), value);
  return std::strtod(buffer, nullptr);
}

Value Round(const Call& call) {
  const int64_t digits = call.Int(1, 0);
  const absl::string_view method = call.Str(2, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    call.Invalid(absl::StrCat("method is ", method, "; wanted: common, ceil or floor"));
  if (!call[0].is_number()) call.Invalid(absl::StrCat("needs a number, got a ", TypeName(call[0])));
  if (method == "common") {
    if (!call[0].is_integer()) return Value::Float(RoundHalfEven(call[0].real(), digits));
    return digits >= 0 ? Value::Int(call[0].integer())
                       : Value::Int(static_cast<int64_t>(RoundHalfEven(call[0].real(), digits)));
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = call[0].real() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

constexpr Function kNumberFilters[] = {
    {"int", ToInt, 0, {"default", "base"}},
    {"float", ToFloat, 0, {"default"}},
    {"abs", Abs},
    {"round", Round, 0, {"precision", "method"}},
};

}  // namespace

absl::Span<const Function> NumberFilters() { return kNumberFilters; }

}  // namespace sluice::chat
