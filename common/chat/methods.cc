// Methods of str and dict.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/chat/interpreter.h"
#include "common/chat/print.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

// Returns a part of the string that the method is called on. It is not copied if the string
// outlives the rendering.
Value MakePart(const Call& call, absl::string_view part) {
  return (call[0].is(Value::kText) ? Value::Borrow(part) : call.Text(part))
      .MarkedSafe(call[0].safe());
}

bool GivenNotNone(const Call& call, size_t i) { return call.has(i) && !call[i].is(Value::kNone); }

template <Side kSide>
Value StripMethod(const Call& call) {
  const absl::string_view text = call[0].text();
  return MakePart(
      call, GivenNotNone(call, 1) ? StripAnyOf(text, call.Str(1), kSide) : StripSpace(text, kSide));
}

template <std::string (*kMap)(absl::string_view)>
Value MappedMethod(const Call& call) {
  call.meter.WorkOnBytes(8 * call[0].text().size());
  return call.Text(kMap(call[0].text())).MarkedSafe(call[0].safe());
}

template <bool (*kHolds)(absl::string_view)>
Value Holds(const Call& call) {
  return Value::Bool(kHolds(call[0].text()));
}
bool IsDigits(absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (!IsDigit(NextCodePoint(text, &at))) return false;
  }
  return !text.empty();
}
bool IsSpaces(absl::string_view text) { return !text.empty() && StripSpace(text, kLeft).empty(); }

// Computes text[start:end], where start and end are the arguments `first` and `first` + 1. `begin`
// is its byte offset in the text. Returns false if start is beyond `end` or the end of the text:
// then not even an empty string is found, as in Python.
bool ResolveWindow(const Call& call, size_t first, absl::string_view* window, size_t* begin) {
  *window = call[0].text();
  *begin = 0;
  if (!GivenNotNone(call, first) && !GivenNotNone(call, first + 1)) return true;
  const absl::string_view text = call[0].text();
  const auto size = static_cast<int64_t>(CountCodePoints(text));
  const auto bound = [&](size_t i, int64_t otherwise) {
    const int64_t at = GivenNotNone(call, i) ? call.Int(i, 0) : otherwise;
    return at < 0 ? std::max<int64_t>(at < -size ? 0 : at + size, 0) : at;
  };
  const int64_t from = bound(first, 0), to = std::min(bound(first + 1, size), size);
  if (from > size || from > to) return false;
  *begin = ByteOf(text, static_cast<size_t>(from));
  *window = text.substr(*begin, ByteOf(text.substr(*begin), static_cast<size_t>(to - from)));
  return true;
}

template <bool (*kMatches)(absl::string_view, absl::string_view)>
Value Affix(const Call& call) {
  absl::string_view window;
  size_t begin = 0;
  if (!ResolveWindow(call, 2, &window, &begin)) return Value::Bool(false);
  if (!call[1].is(Value::kArray) || call[1].array().kind != Array::kTuple)
    return Value::Bool(kMatches(window, call.Str(1)));
  for (const Value& affix : call[1].array().items) {
    call.meter.Step();
    if (!affix.is_string())
      call.Invalid(absl::StrCat("the tuple holds a ", TypeName(affix), "; wanted: str"));
    if (kMatches(window, affix.text())) return Value::Bool(true);
  }
  return Value::Bool(false);
}
bool Starts(absl::string_view text, absl::string_view affix) {
  return absl::StartsWith(text, affix);
}
bool Ends(absl::string_view text, absl::string_view affix) { return absl::EndsWith(text, affix); }

Value Find(const Call& call) {
  absl::string_view window;
  size_t begin = 0;
  call.meter.WorkOnBytes(call[0].text().size());
  const absl::string_view wanted = call.Str(1);
  if (!ResolveWindow(call, 2, &window, &begin)) return Value::Int(-1);
  const size_t at = FindText(window, wanted);
  if (at == absl::string_view::npos) return Value::Int(-1);
  return Value::Int(static_cast<int64_t>(CountCodePoints(call[0].text().substr(0, begin + at))));
}

Value Count(const Call& call) {
  const absl::string_view text = call[0].text(), wanted = call.Str(1);
  call.meter.WorkOnBytes(text.size());
  if (wanted.empty()) return Value::Int(static_cast<int64_t>(CountCodePoints(text)) + 1);
  int64_t count = 0;
  for (size_t at = FindText(text, wanted); at != absl::string_view::npos;
       at = FindText(text, wanted, at + wanted.size())) {
    call.meter.Step();
    ++count;
  }
  return Value::Int(count);
}

Value ReplaceMethod(const Call& call) {
  const std::string out =
      ReplaceText(call.meter, call[0].text(), call.Str(1), call.Str(2), call.Int(3, -1));
  return call.Text(out).MarkedSafe(call[0].safe());
}

// Splits at white space, with at most `most` cuts (-1: no limit). If `right`, cuts are made from
// the right, so the uncut rest is the first part of the text; parts are in reverse order then.
void SplitAtSpace(absl::string_view text, int64_t most, bool right, Meter& meter,
                  std::vector<absl::string_view>* parts) {
  const Side side = right ? kRight : kLeft;
  for (text = StripSpace(text, side); !text.empty(); text = StripSpace(text, side)) {
    meter.Step();
    if (most-- == 0) {
      parts->push_back(text);
      return;
    }
    size_t cut = right ? text.size() : 0;
    while (right ? cut > 0 : cut < text.size()) {
      size_t next = cut, begin = cut;
      if (right) {
        for (--begin; begin > 0 && (text[begin] & 0xc0) == 0x80;) --begin;
        next = begin;
      }
      if (IsSpace(NextCodePoint(text, &next))) break;
      cut = right ? begin : next;
    }
    parts->push_back(right ? text.substr(cut) : text.substr(0, cut));
    text = right ? text.substr(0, cut) : text.substr(cut);
  }
}

void SplitAtText(absl::string_view text, absl::string_view separator, int64_t most, bool right,
                 Meter& meter, std::vector<absl::string_view>* parts) {
  while (most-- != 0) {
    const size_t at = right ? text.rfind(separator) : FindText(text, separator);
    if (at == absl::string_view::npos) break;
    meter.Step();
    parts->push_back(right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts->push_back(text);
}

template <bool kFromRight>
Value Split(const Call& call) {
  const absl::string_view text = call[0].text();
  const int64_t most = call.Int(2, -1);
  std::vector<absl::string_view> parts;
  call.meter.WorkOnBytes(text.size());
  if (!GivenNotNone(call, 1)) {
    SplitAtSpace(text, most, kFromRight, call.meter, &parts);
  } else {
    const absl::string_view separator = call.Str(1);
    if (separator.empty()) call.Invalid("the separator is empty");
    // rfind() takes time proportional to the product of both lengths.
    if (kFromRight && separator.size() > 1024)
      call.meter.Unsupported("rsplit by more than 1024 bytes");
    SplitAtText(text, separator, most, kFromRight, call.meter, &parts);
  }
  if (kFromRight) std::reverse(parts.begin(), parts.end());
  ArrayBuilder list(call.meter, Array::kList);
  for (const absl::string_view part : parts) list.Add(MakePart(call, part));
  return std::move(list).Take();
}

Value SplitLinesMethod(const Call& call) {
  call.meter.Step(static_cast<int64_t>(call[0].text().size() / 16));
  ArrayBuilder list(call.meter, Array::kList);
  for (const absl::string_view line : SplitLines(call[0].text(), call.Flag(1, false)))
    list.Add(MakePart(call, line));
  return std::move(list).Take();
}

Value JoinMethod(const Call& call) {
  Value owner;
  std::string out;
  bool first = true;
  for (const Value& item : Items(call.meter, call[1], &owner)) {
    call.meter.Step();
    if (!item.is_string())
      call.Invalid(absl::StrCat("the list holds a ", TypeName(item), "; wanted: str"));
    call.meter.CheckText(out.size() + call[0].text().size() + item.text().size());
    absl::StrAppend(&out, first ? "" : call[0].text(), item.text());
    first = false;
  }
  return call.Text(out);
}

Value RemovePrefix(const Call& call) {
  absl::string_view text = call[0].text();
  absl::ConsumePrefix(&text, call.Str(1));
  return MakePart(call, text);
}
Value RemoveSuffix(const Call& call) {
  absl::string_view text = call[0].text();
  absl::ConsumeSuffix(&text, call.Str(1));
  return MakePart(call, text);
}

Value FormatMethod(const Call& call) {
  return call.Text(FormatBraces(call.meter, call[0].text(), call.args.subspan(1), call.keywords));
}

constexpr Function kStrMethods[] = {
    {"startswith", Affix<Starts>, 1, {"prefix", "start", "end"}},
    {"endswith", Affix<Ends>, 1, {"suffix", "start", "end"}},
    {"split", Split<false>, 0, {"sep", "maxsplit"}},
    {"rsplit", Split<true>, 0, {"sep", "maxsplit"}},
    {"splitlines", SplitLinesMethod, 0, {"keepends"}},
    {"strip", StripMethod<kBoth>, 0, {"chars"}},
    {"lstrip", StripMethod<kLeft>, 0, {"chars"}},
    {"rstrip", StripMethod<kRight>, 0, {"chars"}},
    {"upper", MappedMethod<Upper>},
    {"lower", MappedMethod<Lower>},
    {"title", MappedMethod<Title>},
    {"capitalize", MappedMethod<Capitalize>},
    {"replace", ReplaceMethod, 2, {"old", "new", "count"}},
    {"find", Find, 1, {"sub", "start", "end"}},
    {"count", Count, 1, {"sub"}},
    {"join", JoinMethod, 1, {"iterable"}},
    {"format", FormatMethod, Function::kVariadic},
    {"removeprefix", RemovePrefix, 1, {"prefix"}},
    {"removesuffix", RemoveSuffix, 1, {"suffix"}},
    {"isdigit", Holds<IsDigits>},
    {"isspace", Holds<IsSpaces>},
    {"isupper", Holds<IsUpper>},
    {"islower", Holds<IsLower>},
};

Value DictItems(const Call& call) {
  ArrayBuilder items(call.meter, Array::kItems);
  for (const auto& [key, value] : call[0].dict().items)
    items.Add(MakeTuple(call.meter, {key, value}));
  return std::move(items).Take();
}
Value DictKeys(const Call& call) {
  ArrayBuilder keys(call.meter, Array::kKeys);
  for (const auto& [key, value] : call[0].dict().items) keys.Add(key);
  return std::move(keys).Take();
}
Value DictValues(const Call& call) {
  ArrayBuilder values(call.meter, Array::kValues);
  for (const auto& [key, value] : call[0].dict().items) values.Add(value);
  return std::move(values).Take();
}
Value DictGet(const Call& call) {
  const Value* const found = chat::Find(call.meter, call[0].dict(), call[1]);
  if (found != nullptr) return *found;
  return call.has(2) ? call[2] : Value::None();
}

constexpr Function kDictMethods[] = {
    {"items", DictItems},
    {"keys", DictKeys},
    {"values", DictValues},
    {"get", DictGet, 1, {"key", "default"}},
};

constexpr absl::string_view kStrUnbuilt[] = {
    "casefold",    "center",  "encode",     "expandtabs", "format_map",   "index",
    "isalnum",     "isalpha", "isascii",    "isdecimal",  "isidentifier", "isnumeric",
    "isprintable", "istitle", "ljust",      "maketrans",  "partition",    "rfind",
    "rindex",      "rjust",   "rpartition", "swapcase",   "translate",    "zfill"};
constexpr absl::string_view kDictUnbuilt[] = {"copy", "fromkeys"};
constexpr absl::string_view kDictForbidden[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr absl::string_view kListUnbuilt[] = {"copy", "count", "index"};
constexpr absl::string_view kRangeUnbuilt[] = {"count", "index", "start", "step", "stop"};
constexpr absl::string_view kNumberUnbuilt[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};
constexpr absl::string_view kListForbidden[] = {"append", "clear",  "extend",  "insert",
                                                "pop",    "remove", "reverse", "sort"};

}  // namespace

const Function* FindMethod(Type type, absl::string_view name) {
  if (type != Type::kStr && type != Type::kDict) return nullptr;
  for (const Function& method :
       type == Type::kStr ? absl::MakeConstSpan(kStrMethods) : absl::MakeConstSpan(kDictMethods)) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

Builtin PythonBuiltin(Type type, absl::string_view name) {
  const auto among = [&](absl::Span<const absl::string_view> names) {
    return absl::c_linear_search(names, name);
  };
  constexpr absl::Span<const absl::string_view> kUnbuilt[kTypes] = {
      kStrUnbuilt, kDictUnbuilt, kListUnbuilt, kRangeUnbuilt, kNumberUnbuilt};
  if (among(kUnbuilt[static_cast<int>(type)])) return Builtin::kUnbuilt;
  if (type == Type::kDict && among(kDictForbidden)) return Builtin::kForbidden;
  if (type == Type::kList && among(kListForbidden)) return Builtin::kForbidden;
  return Builtin::kAbsent;
}

}  // namespace sluice::chat
