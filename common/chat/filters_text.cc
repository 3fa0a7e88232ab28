#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/chat/filters.h"
#include "common/chat/json.h"
#include "common/chat/print.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

// Returns the value as text, as Jinja's soft_str does: a string is not converted. `storage` holds
// the text if it had to be made.
absl::string_view SoftText(const Call& call, std::string* storage) {
  if (call[0].is_string()) return call[0].text();
  *storage = Str(call.meter, call[0]);
  return *storage;
}

Value CopyLikeInput(const Call& call, absl::string_view text) {
  return call.Text(text).MarkedSafe(call[0].safe());
}

Value Trim(const Call& call) {
  std::string storage;
  const absl::string_view text = SoftText(call, &storage);
  const bool chars = call.has(1) && !call[1].is(Value::kNone);
  const absl::string_view trimmed =
      chars ? StripAnyOf(text, call.Str(1), kBoth) : StripSpace(text, kBoth);
  if (trimmed.size() == text.size() && call[0].is_string()) return call[0];
  if (call[0].is(Value::kText)) return Value::Borrow(trimmed).MarkedSafe(call[0].safe());
  return CopyLikeInput(call, trimmed);
}

template <std::string (*kMap)(absl::string_view)>
Value Mapped(const Call& call) {
  std::string storage;
  const absl::string_view text = SoftText(call, &storage);
  call.meter.WorkOnBytes(8 * text.size());
  return CopyLikeInput(call, kMap(text));
}

// Jinja's filter, not str.title: words begin after white space and -({[<.
std::string FilterTitle(absl::string_view text) {
  const auto splits = [](char32_t c) {
    return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t word = at;
    size_t first = 0, end = at;
    while (end < text.size()) {
      size_t next = end;
      if (splits(NextCodePoint(text, &next))) break;
      if (end == word) first = next;
      end = next;
    }
    if (end > word)
      absl::StrAppend(&out, Upper(text.substr(word, first - word)),
                      Lower(text.substr(first, end - first)));
    at = end;
    if (at < text.size()) NextCodePoint(text, &at);
    absl::StrAppend(&out, text.substr(end, at - end));
  }
  return out;
}

Value Replace(const Call& call) {
  std::string storage;
  const absl::string_view text = SoftText(call, &storage);
  const std::string old = Str(call.meter, call[1]), fresh = Str(call.meter, call[2]);
  const int64_t count = call.has(3) && !call[3].is(Value::kNone) ? call.Int(3, -1) : -1;
  return call.Text(ReplaceText(call.meter, text, old, fresh, count));
}

Value ToString(const Call& call) {
  return call[0].is_string() ? call[0] : call.Text(Str(call.meter, call[0]));
}

Value Indent(const Call& call) {
  std::string out;
  const absl::string_view text = call.Str(0);
  const bool first = call.Flag(2, false), blank = call.Flag(3, false);
  const std::string indention = call.has(1) && call[1].is_string()
                                    ? std::string(call[1].text())
                                    : Spaces(call.meter, call.Int(1, 4));
  // As in Jinja, a newline is added before splitting, so that an empty last line is kept.
  std::string whole = absl::StrCat(text, "\n");
  call.meter.WorkOnBytes(whole.size());
  bool at_first = true;
  for (const absl::string_view line : SplitLines(whole, false)) {
    call.meter.Step();
    if (!at_first) out.push_back('\n');
    if (at_first ? first : (blank || !line.empty())) absl::StrAppend(&out, indention);
    absl::StrAppend(&out, line);
    at_first = false;
    call.meter.CheckText(out.size());
  }
  return CopyLikeInput(call, out);
}

Value Center(const Call& call) {
  std::string storage;
  const absl::string_view text = SoftText(call, &storage);
  const int64_t size = static_cast<int64_t>(CountCodePoints(text)), width = call.Int(1, 80),
                missing = width - size;
  if (missing <= 0) return CopyLikeInput(call, text);
  // An odd number of spaces is divided as by CPython's str.center.
  const int64_t left = missing / 2 + (missing & width & 1);
  return CopyLikeInput(
      call, absl::StrCat(Spaces(call.meter, left), text, Spaces(call.meter, missing - left)));
}

Value Truncate(const Call& call) {
  const absl::string_view text = call.Str(0);
  const absl::string_view end = call.Str(3, "...");
  const int64_t length = call.Int(1, 255),
                leeway = call.has(4) && !call[4].is(Value::kNone) ? call.Int(4, 5) : 5;
  const auto end_size = static_cast<int64_t>(CountCodePoints(end));
  if (length < end_size)
    call.Invalid(absl::StrCat("expected length >= ", end_size, ", got ", length));
  if (leeway < 0) call.Invalid(absl::StrCat("expected leeway >= 0, got ", leeway));
  if (static_cast<int64_t>(CountCodePoints(text)) - length <= leeway)
    return CopyLikeInput(call, text);
  absl::string_view kept = text.substr(0, ByteOf(text, static_cast<size_t>(length - end_size)));
  if (!call.Flag(2, false)) {
    if (const size_t space = kept.rfind(' '); space != absl::string_view::npos)
      kept = kept.substr(0, space);
  }
  return CopyLikeInput(call, absl::StrCat(kept, end));
}

Value WordCount(const Call& call) {
  std::string storage;
  const absl::string_view text = SoftText(call, &storage);
  call.meter.WorkOnBytes(8 * text.size());
  int64_t words = 0;
  bool within = false;
  for (size_t at = 0; at < text.size();) {
    const bool word = IsWord(NextCodePoint(text, &at));
    words += word && !within;
    within = word;
  }
  return Value::Int(words);
}

Value Format(const Call& call) {
  const std::string format = Str(call.meter, call[0]);
  if (call.keywords.empty()) {
    ArrayBuilder args(call.meter, Array::kTuple);
    for (const Value& arg : call.args.subspan(1)) args.Add(arg);
    return call.Text(FormatPercent(call.meter, format, std::move(args).Take()));
  }
  if (call.args.size() > 1) call.Invalid("takes arguments with names, or without, not both");
  DictBuilder args(call.meter);
  for (const auto& [name, value] : call.keywords) args.Assign(Value::Copy(call.meter, name), value);
  return call.Text(FormatPercent(call.meter, format, std::move(args).Take()));
}

Value Escape(const Call& call) {
  if (call[0].safe()) return call[0];
  const std::string text = Str(call.meter, call[0]);
  call.meter.CheckText(text.size());
  return call.Text(EscapeHtml(text)).MarkedSafe(true);
}

Value ForceEscape(const Call& call) {
  return call.Text(EscapeHtml(Str(call.meter, call[0]))).MarkedSafe(true);
}

Value Safe(const Call& call) {
  if (call[0].is_string()) return Value(call[0]).MarkedSafe(true);
  return call.Text(Str(call.meter, call[0])).MarkedSafe(true);
}

void AppendUrl(absl::string_view text, std::string* out) {
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || absl::string_view("_.-~/").find(c) != absl::string_view::npos) {
      out->push_back(c);
    } else {
      absl::StrAppendFormat(out, "%%%02X", static_cast<uint8_t>(c));
    }
  }
}

Value UrlEncode(const Call& call) {
  if (call[0].is(Value::kDict) || call[0].is(Value::kArray))
    call.meter.Unsupported("urlencode of pairs");
  const std::string text = Str(call.meter, call[0]);
  std::string out;
  AppendUrl(text, &out);
  return call.Text(out);
}

// Hugging Face's tojson: json.dumps(value, ensure_ascii, indent, separators, sort_keys), without
// escapes for HTML.
Value ToJsonFilter(const Call& call) {
  JsonStyle style;
  style.ascii = call.Flag(2, false);
  style.sort_keys = call.Flag(4, false);
  if (call.has(1) && !call[1].is(Value::kNone)) {
    style.indented = true;
    style.indent =
        call[1].is_string() ? std::string(call[1].text()) : Spaces(call.meter, call.Int(1, 0));
    style.item_separator = ",";
  }

  if (call.has(3) && !call[3].is(Value::kNone)) {
    const Value& pair = call[3];
    if (!pair.is(Value::kArray) || pair.array().items.size() != 2 ||
        !pair.array().items[0].is_string() || !pair.array().items[1].is_string()) {
      call.Invalid(absl::StrCat("separators is a ", TypeName(pair), "; wanted: two str"));
    }
    style.item_separator = std::string(pair.array().items[0].text());
    style.key_separator = std::string(pair.array().items[1].text());
  }
  return call.Text(ToJson(call.meter, call[0], style));
}

constexpr Function kTextFilters[] = {
    {"tojson", ToJsonFilter, 0, {"indent", "ensure_ascii", "separators", "sort_keys"}},
    {"trim", Trim, 0, {"chars"}},
    {"upper", Mapped<Upper>},
    {"lower", Mapped<Lower>},
    {"title", Mapped<FilterTitle>},
    {"capitalize", Mapped<Capitalize>},
    {"replace", Replace, 2, {"old", "new", "count"}},
    {"string", ToString},
    {"indent", Indent, 0, {"width", "first", "blank"}},
    {"center", Center, 0, {"width"}},
    {"truncate", Truncate, 0, {"length", "killwords", "end", "leeway"}},
    {"wordcount", WordCount},
    {"format", Format, Function::kVariadic},
    {"safe", Safe},
    {"escape", Escape},
    {"e", Escape},
    {"forceescape", ForceEscape},
    {"urlencode", UrlEncode},
};

}  // namespace

absl::Span<const Function> TextFilters() { return kTextFilters; }

}  // namespace sluice::chat
