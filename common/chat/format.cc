// Python's "..." % args and "...".format(args).
#include <cmath>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/chat/print.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

// Most digits after the point; no template needs more.
constexpr int kMaxPrecision = 100;

// The format of one value: [[fill]align][sign][#][0][width][,][.precision][type].
struct Spec {
  std::string fill = " ";
  char align = '\0';  // One of < > ^ =; '\0': the default of the type.
  char sign = '\0';   // One of + - or space; '\0': as -.
  bool alternate = false, grouped = false;
  // precision: digits after the point; -1 if not given.
  int64_t width = 0, precision = -1;
  char type = '\0';
};

bool TakeNumber(absl::string_view* text, int64_t* number) {
  size_t digits = 0;
  while (digits < text->size() && absl::ascii_isdigit((*text)[digits])) ++digits;
  if (digits == 0) return false;
  if (!absl::SimpleAtoi(text->substr(0, digits), number)) *number = INT64_MAX;
  text->remove_prefix(digits);
  return true;
}

bool TakeOneOf(absl::string_view* text, absl::string_view chars, char* taken) {
  if (text->empty() || chars.find((*text)[0]) == absl::string_view::npos) return false;
  *taken = (*text)[0];
  text->remove_prefix(1);
  return true;
}

std::string DigitsOf(uint64_t value, unsigned base) {
  std::string digits;
  do digits.insert(digits.begin(), "0123456789abcdef"[value % base]);
  while ((value /= base) != 0);
  return digits;
}

class Formatter {
 public:
  explicit Formatter(Meter& meter) : meter_(meter) {}
  std::string out;

  void Append(absl::string_view text) {
    meter_.CheckText(out.size() + text.size());
    absl::StrAppend(&out, text);
  }

  // Appends `text`, padded to its field. `sign_size` is the number of bytes before the digits; with
  // `=`, the padding goes after them.
  void AppendPadded(absl::string_view text, const Spec& spec, char otherwise,
                    size_t sign_size = 0) {
    const char align = spec.align != '\0' ? spec.align : otherwise;
    const int64_t missing = spec.width - static_cast<int64_t>(CountCodePoints(text));
    if (missing <= 0) return Append(text);
    meter_.CheckText(std::min<uint64_t>(kMaxTextBytes + 1, static_cast<uint64_t>(missing)));
    const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
    if (align == '=') Append(text.substr(0, sign_size)), text.remove_prefix(sign_size);
    for (int64_t i = 0; i < left; ++i) Append(spec.fill);
    Append(text);
    for (int64_t i = left; i < missing; ++i) Append(spec.fill);
  }

  void AppendText(absl::string_view text, const Spec& spec) {
    if (spec.precision >= 0)
      text = text.substr(0, ByteOf(text, static_cast<size_t>(spec.precision)));
    AppendPadded(text, spec, '<');
  }

  void AppendInteger(int64_t value, const Spec& spec, int64_t least_digits = 0) {
    const char lower = absl::ascii_tolower(spec.type);
    const unsigned base = lower == 'x' ? 16 : lower == 'o' ? 8 : lower == 'b' ? 2 : 10;
    std::string digits =
        DigitsOf(value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value), base);
    while (static_cast<int64_t>(digits.size()) < std::min<int64_t>(least_digits, kMaxPrecision))
      digits.insert(digits.begin(), '0');
    std::string head = SignText(value < 0, spec);
    if (spec.alternate && base != 10) absl::StrAppend(&head, "0", std::string(1, lower));
    if (spec.type == 'X')
      head = absl::AsciiStrToUpper(head), digits = absl::AsciiStrToUpper(digits);
    AppendNumber(head, digits, "", spec);
  }

  void AppendReal(double value, const Spec& spec) {
    if (spec.precision > kMaxPrecision)
      meter_.Invalid(
          absl::StrCat("a precision of ", spec.precision, " is more than ", kMaxPrecision));
    const std::string text = FormatReal(std::abs(value), spec);
    const size_t whole = std::min(text.find_first_not_of("0123456789"), text.size());
    AppendNumber(SignText(std::signbit(value) && !std::isnan(value), spec), text.substr(0, whole),
                 text.substr(whole), spec);
  }

 private:
  static std::string SignText(bool negative, const Spec& spec) {
    return negative ? "-" : spec.sign == '+' || spec.sign == ' ' ? std::string(1, spec.sign) : "";
  }

  // Returns the digits of |value| without a sign. Without a type: as repr(), or with a precision as
  // `g`, but always with a digit after the point.
  static std::string FormatReal(double value, const Spec& spec) {
    if (spec.type == '\0' && spec.precision < 0) {
      std::string text;
      AppendFloat(value, &text);
      return text;
    }

    const bool percent = spec.type == '%';
    int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
    char type = percent ? 'f' : spec.type;
    bool point = false;
    if (type == '\0') {
      precision = std::max(precision, 1);
      const std::string scientific = absl::StrFormat("%.*e", precision - 1, value);
      int exponent = 0;
      (void)absl::SimpleAtoi(absl::string_view(scientific)
                                 .substr(std::min(scientific.find('e') + 1, scientific.size())),
                             &exponent);
      type = 'g';
      point = std::isfinite(value) && exponent >= -4 && exponent < precision - 1;
      // Without a type, the exponent form begins one digit earlier than with `g`.
      if (std::isfinite(value) && exponent == precision - 1)
        return TrimZeros(scientific.substr(0, scientific.find('e'))) +
               scientific.substr(scientific.find('e'));
    }

    // Without a width, the flag `-` changes nothing; it only takes the place of `#`.
    const char c_format[] = {'%', spec.alternate ? '#' : '-', '.', '*', type, '\0'};
    char buffer[512];
    std::snprintf(buffer, sizeof(buffer), c_format, precision, percent ? value * 100 : value);
    std::string text = buffer;
    if (point && text.find('.') == std::string::npos) text += ".0";
    if (percent) text.push_back('%');
    return text;
  }

  // Removes the zeros at the end of a fraction.
  static std::string TrimZeros(std::string text) {
    if (text.find('.') == std::string::npos) return text;
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
    return text;
  }

  // Appends the number. Zeros that fill the field are grouped like digits.
  void AppendNumber(absl::string_view head, std::string digits, absl::string_view rest,
                    const Spec& spec) {
    if (spec.grouped && !digits.empty()) {
      if (spec.fill == "0" && spec.align == '=') {
        const int64_t room = spec.width - static_cast<int64_t>(head.size() + rest.size());
        meter_.CheckText(static_cast<size_t>(std::clamp<int64_t>(room, 0, kMaxTextBytes + 1)));
        // Of every four places, one is a comma, and the first place is never one.
        const int64_t least = room - (room - 1) / 4;
        if (static_cast<int64_t>(digits.size()) < least)
          digits.insert(0, static_cast<size_t>(least) - digits.size(), '0');
      }
      InsertCommas(&digits);
    }
    AppendPadded(absl::StrCat(head, digits, rest), spec, '>', head.size());
  }

  static void InsertCommas(std::string* digits) {
    std::string grouped;
    for (size_t i = 0; i < digits->size(); ++i) {
      if (i > 0 && (digits->size() - i) % 3 == 0) grouped.push_back(',');
      grouped.push_back((*digits)[i]);
    }
    *digits = std::move(grouped);
  }

  Meter& meter_;
};

// Formats one value of a % format. `spec` holds the parsed directive with its type.
void AppendPercentField(Meter& meter, Spec spec, const Value& value, Formatter* to) {
  const char type = spec.type;
  switch (type) {
    case 's':
      // Texts are aligned to the right by default.
      return to->AppendText(Str(meter, value), [&] {
        if (spec.align == '\0') spec.align = '>';
        return spec;
      }());
    case 'r':
      return to->AppendText(Repr(meter, value), [&] {
        if (spec.align == '\0') spec.align = '>';
        return spec;
      }());
    case 'c':
      if (spec.align == '\0') spec.align = '>';
      spec.precision = -1;
      if (value.is_string() && CountCodePoints(value.text()) == 1)
        return to->AppendText(value.text(), spec);
      if (value.is_integer()) meter.Unsupported("format: %c of an int");
      meter.Invalid(
          absl::StrCat("format: %c needs a str of one character, got a ", TypeName(value)));
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      // %d also takes a float, which it truncates.
      const bool real = value.is(Value::kFloat) && (type == 'd' || type == 'i' || type == 'u');
      if (!value.is_integer() && !real)
        meter.Invalid(absl::StrCat("format: %", std::string(1, type), " needs a number, got a ",
                                   TypeName(value)));
      if (real && !(std::abs(value.real()) < 9.2e18))
        meter.Invalid(absl::StrCat("format: ", value.real(), " is beyond 64 bits"));
      return to->AppendInteger(real ? static_cast<int64_t>(value.real()) : value.integer(), spec,
                               spec.precision);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value.is_number())
        meter.Invalid(absl::StrCat("format: %", std::string(1, type), " needs a number, got a ",
                                   TypeName(value)));
      return to->AppendReal(value.real(), spec);
    default: meter.Invalid(absl::StrCat("format: %", std::string(1, type), " is not a directive"));
  }
}

// Parses a specification. If `number`, a zero before the width pads between the sign and the
// digits.
Spec ParseSpec(Meter& meter, absl::string_view text, bool number) {
  Spec spec;
  const absl::string_view whole = text;
  bool filled = false;
  if (!text.empty()) {
    // A fill character is one that is followed by an align character.
    const size_t first = ByteOf(text, 1);
    if (first < text.size() &&
        absl::string_view("<>^=").find(text[first]) != absl::string_view::npos) {
      spec.fill = std::string(text.substr(0, first));
      text.remove_prefix(first);
      filled = true;
    }
  }

  char taken = '\0';
  TakeOneOf(&text, "<>^=", &spec.align);
  TakeOneOf(&text, "+- ", &spec.sign);
  spec.alternate = TakeOneOf(&text, "#", &taken);
  if (!filled && TakeOneOf(&text, "0", &taken)) {
    spec.fill = "0";
    if (number && spec.align == '\0') spec.align = '=';
  }

  TakeNumber(&text, &spec.width);
  spec.grouped = TakeOneOf(&text, ",", &taken);
  if (TakeOneOf(&text, ".", &taken) && !TakeNumber(&text, &spec.precision))
    meter.Invalid(absl::StrCat("format: \"", whole, "\" has no digits behind the point"));
  TakeOneOf(&text, "sdxXobeEfFgG%", &spec.type);
  if (!text.empty()) meter.Unsupported(absl::StrCat("format: the specification \"", whole, "\""));
  return spec;
}

// Formats one value of a {} format, like __format__ of its type.
void AppendBraceField(Meter& meter, const Value& value, absl::string_view text, Formatter* to) {
  if (text.empty()) return to->Append(Str(meter, value));
  const Spec spec = ParseSpec(meter, text, value.is_number());
  const auto type_among = [&](absl::string_view types) {
    return spec.type == '\0' || types.find(spec.type) != absl::string_view::npos;
  };
  const bool real =
      value.is(Value::kFloat) || (value.is_integer() && spec.type != '\0' && type_among("eEfFgG%"));
  bool fits = value.is_string() && type_among("s") && spec.align != '=' && spec.sign == '\0' &&
              !spec.alternate && !spec.grouped;
  if (real) fits = type_among("eEfFgG%");
  if (value.is_integer() && !real)
    fits = type_among("dxXob") && spec.precision < 0 && (!spec.grouped || type_among("d"));
  if (!fits) meter.Invalid(absl::StrCat("format: \"", text, "\" does not fit a ", TypeName(value)));
  if (value.is_string()) return to->AppendText(value.text(), spec);
  if (!real) return to->AppendInteger(value.integer(), spec);
  if (spec.alternate && spec.type == '\0')
    meter.Unsupported(absl::StrCat("format: the specification \"", text, "\" of a float"));
  to->AppendReal(value.real(), spec);
}

}  // namespace

std::string FormatPercent(Meter& meter, absl::string_view format, const Value& args) {
  const bool tuple = args.is(Value::kArray) && args.array().kind == Array::kTuple;
  const absl::Span<const Value> values =
      tuple ? absl::MakeConstSpan(args.array().items) : absl::MakeConstSpan(&args, 1);
  size_t used = 0;
  Formatter to(meter);
  while (true) {
    const size_t percent = format.find('%');
    to.Append(format.substr(0, percent));
    if (percent == absl::string_view::npos) break;
    meter.Step();
    format.remove_prefix(percent + 1);
    Value value;
    const bool by_name = absl::StartsWith(format, "(");
    if (by_name) {
      const size_t close = format.find(')');
      if (close == absl::string_view::npos || !args.is(Value::kDict))
        meter.Invalid("format: %(name) needs a dict");
      const Value* const found = args.dict().Find(format.substr(1, close - 1));
      if (found == nullptr)
        meter.Invalid(
            absl::StrCat("format: there is no value named ", format.substr(1, close - 1)));
      value = *found;
      format.remove_prefix(close + 1);
    }

    Spec spec;
    for (char flag; TakeOneOf(&format, "-+ 0#", &flag);) {
      if (flag == '-') spec.align = '<', spec.fill = " ";
      if (flag == '0' && spec.align != '<') spec.align = '=', spec.fill = "0";
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      if (flag == '#') spec.alternate = true;
    }

    char point = '\0';
    TakeNumber(&format, &spec.width);
    if (TakeOneOf(&format, ".", &point) && !TakeNumber(&format, &spec.precision))
      spec.precision = 0;
    if (format.empty()) meter.Invalid("format: the text ends within a directive");
    spec.type = format[0];
    format.remove_prefix(1);
    if (spec.type == '%') {
      to.Append("%");
      continue;
    }

    if (!by_name && used >= values.size())
      meter.Invalid(
          absl::StrCat("format: there are ", values.size(), " values, and more directives"));
    if (spec.align == '=' && (spec.type == 's' || spec.type == 'r' || spec.type == 'c'))
      spec.align = '>', spec.fill = " ";
    AppendPercentField(meter, spec, by_name ? value : values[used++], &to);
  }

  // As in Python, unused values are an error, unless `args` is something that could be looked up by
  // name.
  const bool by_key =
      args.is(Value::kDict) || args.is(Value::kUndefined) || (args.is(Value::kArray) && !tuple);
  if (used < values.size() && !(by_key && used == 0))
    meter.Invalid(absl::StrCat("format: there are ", values.size(), " values, and only ", used,
                               " directives"));
  return std::move(to.out);
}

std::string FormatBraces(Meter& meter, absl::string_view format, absl::Span<const Value> args,
                         absl::Span<const std::pair<absl::string_view, Value>> keywords) {
  Formatter to(meter);
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      const size_t end = std::min(format.find_first_of("{}", i), format.size());
      to.Append(format.substr(i, end - i));
      i = end - 1;
      continue;
    }

    // {{ and }} stand for single braces.
    if (i + 1 < format.size() && format[i + 1] == c) {
      to.Append(format.substr(i++, 1));
      continue;
    }
    const size_t close = format.find('}', i);
    if (c == '}' || close == absl::string_view::npos)
      meter.Invalid(absl::StrCat("format: a single ", format.substr(i, 1)));
    meter.Step();
    absl::string_view field = format.substr(i + 1, close - i - 1), spec;
    i = close;

    // A field has the form name!conversion:spec.
    if (const size_t colon = field.find(':'); colon != absl::string_view::npos)
      spec = field.substr(colon + 1), field = field.substr(0, colon);
    if (spec.find('{') != absl::string_view::npos)
      meter.Unsupported("format: a field within a field");
    bool repr = false;
    if (const size_t bang = field.find('!'); bang != absl::string_view::npos) {
      const absl::string_view conversion = field.substr(bang + 1);
      if (conversion != "r" && conversion != "s")
        meter.Unsupported(absl::StrCat("format: the conversion !", conversion));
      repr = conversion == "r";
      field = field.substr(0, bang);
    }
    if (field.find_first_of(".[") != absl::string_view::npos)
      meter.Unsupported(absl::StrCat("format: the field \"", field, "\""));

    const Value* value = nullptr;
    size_t index = next;
    if (field.empty() || absl::SimpleAtoi(field, &index)) {
      if (field.empty()) ++next;
      value = index < args.size() ? &args[index] : nullptr;
    } else {
      for (const auto& [name, keyword] : keywords) value = name == field ? &keyword : value;
    }
    if (value == nullptr)
      meter.Invalid(absl::StrCat("format: there is no value for {", field, "}"));
    AppendBraceField(meter, repr ? Value::Copy(meter, Repr(meter, *value)) : *value, spec, &to);
  }
  return std::move(to.out);
}

}  // namespace sluice::chat
