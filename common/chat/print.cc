#include "common/chat/print.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

void AppendQuoted(absl::string_view text, std::string* out) {
  // Python uses double quotes only if the text has single quotes and no double ones.
  const bool double_quoted =
      text.find('\'') != absl::string_view::npos && text.find('"') == absl::string_view::npos;
  const char quote = double_quoted ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = NextCodePoint(text, &at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (IsPrintable(c)) {
      out->append(text.data() + begin, at - begin);
    } else {
      absl::StrAppend(out, c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U");
      absl::StrAppendFormat(out, "%0*x",
                            c < 0x100     ? 2
                            : c < 0x10000 ? 4
                                          : 8,
                            static_cast<uint32_t>(c));
    }
  }
  out->push_back(quote);
}

void AppendItems(Meter& meter, const Array& array, std::string* out) {
  bool first = true;
  for (const Value& item : array.items) {
    if (!first) out->append(", ");
    first = false;
    AppendRepr(meter, item, out);
  }
}

void AppendArray(Meter& meter, const Value& value, std::string* out) {
  const Array& array = value.array();
  switch (array.kind) {
    case Array::kTuple:
      out->push_back('(');
      AppendItems(meter, array, out);
      out->append(array.items.size() == 1 ? ",)" : ")");
      return;
    case Array::kRange:
      absl::StrAppend(out, "range(", array.start, ", ", array.stop);
      if (array.step != 1) absl::StrAppend(out, ", ", array.step);
      out->push_back(')');
      return;
    case Array::kGenerator:
      meter.Unsupported(
          "printing a generator (its text would be an address; put | list behind it)");
    case Array::kList: break;
    default: absl::StrAppend(out, TypeName(value), "(");
  }
  out->push_back('[');
  AppendItems(meter, array, out);
  out->append(array.kind == Array::kList ? "]" : "])");
}

}  // namespace

void AppendFloat(double value, std::string* out) {
  if (std::isnan(value)) return out->append("nan"), void();
  if (std::isinf(value)) return out->append(value > 0 ? "inf" : "-inf"), void();
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  absl::string_view text(buffer, end - buffer);  // Has the form d.ddde[+-]dd.
  if (text[0] == '-') out->push_back('-'), text.remove_prefix(1);
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(),
                  exponent);
  std::string digits(1, text[0]);
  if (e > 2) absl::StrAppend(&digits, text.substr(2, e - 2));
  const int count = static_cast<int>(digits.size());
  // Python writes an exponent exactly in these cases.
  if (exponent < -4 || exponent >= 16) {
    absl::StrAppend(out, digits.substr(0, 1), count > 1 ? "." : "", digits.substr(1));
    absl::StrAppendFormat(out, "e%+03d", exponent);
  } else if (exponent < 0) {
    absl::StrAppend(out, "0.", std::string(-exponent - 1, '0'), digits);
  } else if (count <= exponent + 1) {
    absl::StrAppend(out, digits, std::string(exponent + 1 - count, '0'), ".0");
  } else {
    absl::StrAppend(out, digits.substr(0, exponent + 1), ".", digits.substr(exponent + 1));
  }
}

void AppendStr(Meter& meter, const Value& value, std::string* out) {
  if (value.is_string()) {
    const absl::string_view text = value.text();
    meter.CheckText(out->size() + text.size());
    meter.WorkOnBytes(text.size());
    out->append(text.data(), text.size());
  } else if (!value.is(Value::kUndefined)) {
    AppendRepr(meter, value, out);
  }
}

void AppendRepr(Meter& meter, const Value& value, std::string* out) {
  meter.Step();
  switch (value.kind()) {
    case Value::kUndefined: out->append("Undefined"); break;
    case Value::kNone: out->append("None"); break;
    case Value::kBool: out->append(value.boolean() ? "True" : "False"); break;
    case Value::kInt: absl::StrAppend(out, value.integer()); break;
    case Value::kFloat: AppendFloat(value.real(), out); break;
    case Value::kText:
    case Value::kString:
      meter.CheckText(out->size() + value.text().size());
      meter.WorkOnBytes(4 * value.text().size());
      if (value.safe()) out->append("Markup(");
      AppendQuoted(value.text(), out);
      if (value.safe()) out->append(")");
      break;
    case Value::kArray: AppendArray(meter, value, out); break;
    case Value::kDict: {
      out->push_back('{');
      bool first = true;
      for (const auto& [key, item] : value.dict().items) {
        if (!first) out->append(", ");
        first = false;
        AppendRepr(meter, key, out);
        out->append(": ");
        AppendRepr(meter, item, out);
      }
      out->push_back('}');
      break;
    }
    case Value::kObject:
    case Value::kFunction:
    case Value::kMethod: meter.Unsupported(absl::StrCat("printing a ", TypeName(value)));
  }
  meter.CheckText(out->size());
}

std::string Str(Meter& meter, const Value& value) {
  std::string out;
  AppendStr(meter, value, &out);
  return out;
}

std::string Repr(Meter& meter, const Value& value) {
  std::string out;
  AppendRepr(meter, value, &out);
  return out;
}

std::string ReplaceText(Meter& meter, absl::string_view text, absl::string_view old,
                        absl::string_view fresh, int64_t count) {
  std::string out;
  size_t at = 0;
  meter.WorkOnBytes(text.size());
  for (; count != 0; --count) {
    // An empty `old` occurs before each character and at the end.
    const size_t found = FindText(text, old, at);
    if (found == absl::string_view::npos) break;
    meter.Step();
    meter.CheckText(out.size() + fresh.size() + (found - at));
    absl::StrAppend(&out, text.substr(at, found - at), fresh);
    at = found + old.size();
    if (!old.empty()) continue;
    if (at == text.size()) break;
    NextCodePoint(text, &at);
    absl::StrAppend(&out, text.substr(found, at - found));
  }
  absl::StrAppend(&out, text.substr(at));
  meter.CheckText(out.size());
  return out;
}

std::string Spaces(Meter& meter, int64_t count) {
  if (count > static_cast<int64_t>(kMaxTextBytes)) meter.CheckText(kMaxTextBytes + 1);
  return std::string(count > 0 ? static_cast<size_t>(count) : 0, ' ');
}

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}});
}

}  // namespace sluice::chat
