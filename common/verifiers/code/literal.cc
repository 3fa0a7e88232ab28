#include "common/verifiers/code/literal.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/id.h"
#include "common/base/utf8.h"

namespace sluice::code {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 100;
constexpr size_t kMostCompared = 1000;

Json Int(std::string digits) { return {{"int", std::move(digits)}}; }
Json Float(std::string text) { return {{"float", std::move(text)}}; }

// A recursive-descent parser. Each method consumes what it returns, or leaves `text_` anywhere if
// it returns nothing.
class LiteralParser {
 public:
  explicit LiteralParser(absl::string_view text) : text_(text) {}

  std::optional<Json> Value(int depth = 0) {
    if (depth > kMaxDepth) return std::nullopt;
    SkipSpace();
    if (text_.empty()) return std::nullopt;
    const char first = text_[0];
    if (first == '(' || first == '[')
      return Sequence(first == '(' ? ')' : ']', first == '(', depth);
    if (first == '{') return Braces(depth);
    if (first == '\'' || first == '"') return Strings("");
    if (first == '-' || first == '+' || first == '.' || absl::ascii_isdigit(first)) return Number();
    return Word(depth);
  }
  absl::string_view rest() const { return text_; }

 private:
  void SkipSpace() {
    while (!text_.empty()) {
      if (absl::ascii_isspace(text_[0])) text_.remove_prefix(1);
      else if (absl::StartsWith(text_, "\\\n")) text_.remove_prefix(2);
      else return;
    }
  }
  bool Eat(char c) {
    SkipSpace();
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  // Elements up to `close`. (1) is 1, but (1,) and () are sequences.
  std::optional<Json> Sequence(char close, bool round, int depth) {
    text_.remove_prefix(1);
    Json list = Json::array();
    bool comma = false;
    while (!Eat(close)) {
      if (!list.empty() && !comma) return std::nullopt;
      std::optional<Json> item = Value(depth + 1);
      if (!item.has_value()) return std::nullopt;
      list.push_back(*std::move(item));
      comma = Eat(',');
    }
    if (round && list.size() == 1 && !comma) return Json(list[0]);
    return list;
  }

  std::optional<Json> Braces(int depth) {
    text_.remove_prefix(1);
    Json items = Json::array(), pairs = Json::array();
    bool comma = true;
    while (!Eat('}')) {
      if (!comma) return std::nullopt;
      std::optional<Json> key = Value(depth + 1);
      if (!key.has_value()) return std::nullopt;
      if (Eat(':')) {
        std::optional<Json> value = Value(depth + 1);
        if (!value.has_value()) return std::nullopt;
        pairs.push_back(Json::array({*std::move(key), *std::move(value)}));
      } else {
        items.push_back(*std::move(key));
      }
      comma = Eat(',');
    }
    if (!items.empty() && !pairs.empty()) return std::nullopt;
    if (!items.empty()) return Json{{"set", Unique(items)}};
    return Json{{"dict", pairs}};
  }

  static Json Unique(const Json& items) {
    if (items.size() > kMostCompared) return items;
    Json unique = Json::array();
    for (const Json& item : items) {
      bool seen = false;
      for (const Json& other : unique) seen = seen || Equal(item, other, 0);
      if (!seen) unique.push_back(item);
    }
    return unique;
  }

  std::optional<Json> Number() {
    bool negative = false;
    while (!text_.empty() && (text_[0] == '-' || text_[0] == '+')) {
      negative ^= text_[0] == '-';
      text_.remove_prefix(1);
      SkipSpace();
    }
    if (absl::StartsWith(text_, "float(") || absl::StartsWith(text_, "math.inf")) {
      std::optional<Json> value = Word(0);
      if (!value.has_value() || !value->contains("float")) return std::nullopt;
      if (negative) (*value)["float"] = absl::StrCat("-", (*value)["float"].get<std::string>());
      return value;
    }
    size_t length = 0;
    const auto take_digits = [&] {
      const size_t begin = length;
      while (length < text_.size() && (absl::ascii_isdigit(text_[length]) || text_[length] == '_'))
        ++length;
      return length > begin;
    };
    bool digits = take_digits(), real = false;
    if (length < text_.size() && text_[length] == '.') {
      real = true;
      ++length;
      digits = take_digits() || digits;
    }
    if (!digits) return std::nullopt;
    if (length < text_.size() && (text_[length] == 'e' || text_[length] == 'E')) {
      real = true;
      ++length;
      if (length < text_.size() && (text_[length] == '-' || text_[length] == '+')) ++length;
      if (!take_digits()) return std::nullopt;
    }
    // 0x10, 1j and names such as 3x are not read.
    if (length < text_.size() && (absl::ascii_isalnum(text_[length]))) return std::nullopt;
    std::string number = absl::StrReplaceAll(text_.substr(0, length), {{"_", ""}});
    text_.remove_prefix(length);
    if (negative) number = absl::StrCat("-", number);
    if (real) return Float(number);
    // As Python writes it: no leading zeros, no -0.
    const bool minus = number[0] == '-';
    const size_t first = number.find_first_not_of('0', minus ? 1 : 0);
    if (first == std::string::npos) return Int("0");
    return Int(absl::StrCat(minus ? "-" : "", number.substr(first)));
  }

  std::optional<Json> Word(int depth) {
    size_t length = 0;
    while (length < text_.size() &&
           (absl::ascii_isalnum(text_[length]) || text_[length] == '_' || text_[length] == '.'))
      ++length;
    const std::string word(text_.substr(0, length));
    text_.remove_prefix(length);
    if (word == "None") return Json(nullptr);
    if (word == "True") return Json(true);
    if (word == "False") return Json(false);
    if (word == "math.inf") return Float("inf");
    if (!text_.empty() && (text_[0] == '\'' || text_[0] == '"')) return Strings(word);
    if (!Eat('(')) return std::nullopt;
    if (Eat(')')) {
      if (word == "set" || word == "frozenset") return Json{{"set", Json::array()}};
      if (word == "dict") return Json{{"dict", Json::array()}};
      if (word == "list" || word == "tuple") return Json::array();
      return std::nullopt;
    }
    const std::optional<Json> inner = Value(depth + 1);
    Eat(',');
    if (!inner.has_value() || !Eat(')')) return std::nullopt;
    if (word == "float" && inner->is_string()) return Float(absl::AsciiStrToLower(*inner));
    if (!inner->is_array()) return std::nullopt;
    if (word == "set" || word == "frozenset") return Json{{"set", Unique(*inner)}};
    if (word == "list" || word == "tuple") return inner;
    return std::nullopt;
  }

  // Adjacent texts are one. `prefix` is that of the first.
  std::optional<Json> Strings(std::string prefix) {
    std::string all;
    const bool bytes = absl::AsciiStrToLower(prefix).find('b') != std::string::npos;
    while (true) {
      const std::string lower = absl::AsciiStrToLower(prefix);
      if (lower.find_first_not_of("rbu") != std::string::npos) return std::nullopt;
      if (!String(absl::StrContains(lower, "r"), &all)) return std::nullopt;
      const absl::string_view before = text_;
      SkipSpace();
      if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) {
        text_ = before;
        break;
      }
      prefix.clear();
    }
    if (bytes) return Json{{"bytes", ToHex(all)}};
    return Json(Utf8Lossy(all));
  }

  bool String(bool raw, std::string* out) {
    const char quote = text_[0];
    const std::string triple(3, quote);
    const std::string end = absl::StartsWith(text_, triple) ? triple : std::string(1, quote);
    text_.remove_prefix(end.size());
    while (!absl::StartsWith(text_, end)) {
      if (text_.empty() || (text_[0] == '\n' && end.size() == 1)) return false;
      if (text_[0] != '\\') {
        out->push_back(text_[0]);
        text_.remove_prefix(1);
      } else if (raw) {
        if (text_.size() < 2) return false;
        absl::StrAppend(out, text_.substr(0, 2));
        text_.remove_prefix(2);
      } else if (!Escape(out)) {
        return false;
      }
    }
    text_.remove_prefix(end.size());
    return true;
  }

  bool Escape(std::string* out) {
    if (text_.size() < 2) return false;
    const char c = text_[1];
    constexpr absl::string_view kNames = "abfnrtv\\'\"", kBytes = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t at = kNames.find(c); at != absl::string_view::npos) {
      out->push_back(kBytes[at]);
      text_.remove_prefix(2);
      return true;
    }
    if (c == '\n') {
      text_.remove_prefix(2);
      return true;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string hex(text_.substr(2, digits));
      char* end = nullptr;
      const unsigned long code = std::strtoul(hex.c_str(), &end, 16);
      if (hex.size() != digits || *end != '\0' || code > 0x10FFFF) return false;
      AppendUtf8(static_cast<uint32_t>(code), out);
      text_.remove_prefix(2 + digits);
      return true;
    }
    if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      text_.remove_prefix(1);
      for (int i = 0; i < 3 && !text_.empty() && text_[0] >= '0' && text_[0] <= '7'; ++i) {
        code = code * 8 + static_cast<uint32_t>(text_[0] - '0');
        text_.remove_prefix(1);
      }
      AppendUtf8(code, out);
      return true;
    }
    absl::StrAppend(out, text_.substr(0, 2));  // Python keeps the backslash of what is no escape.
    text_.remove_prefix(2);
    return true;
  }

  absl::string_view text_;
};

// The content of {"kind": ..}, or null.
const Json* Tagged(const Json& value, const char* kind) {
  if (!value.is_object()) return nullptr;
  const auto it = value.find(kind);
  return it == value.end() ? nullptr : &*it;
}

bool Near(double a, double gold, double tol) {
  return a == gold || std::abs(a - gold) <= tol * std::max(1.0, std::abs(gold));
}

bool NumbersEqual(const Json& value, const Json& gold, double float_tol) {
  const Json *a = Tagged(value, "int"), *b = Tagged(gold, "int");
  if (a != nullptr && b != nullptr) return *a == *b;
  const std::optional<double> x = NumberOf(value), y = NumberOf(gold);
  if (!x.has_value() || !y.has_value()) return false;
  if (std::isnan(*x) && std::isnan(*y)) return true;
  return Near(*x, *y, float_tol);
}

std::vector<std::string> SortedTexts(const Json& items) {
  std::vector<std::string> texts;
  for (const Json& item : items)
    texts.push_back(item.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::sort(texts.begin(), texts.end());
  return texts;
}

// Whether each of `golds` has an element of `values` of its own.
bool SameItems(const Json& values, const Json& golds,
               const std::function<bool(const Json&, const Json&)>& same) {
  if (!values.is_array() || values.size() != golds.size()) return false;
  // Each is compared with each, so large ones, which a program may return, must be the same texts.
  if (golds.size() > kMostCompared) return SortedTexts(values) == SortedTexts(golds);
  std::vector<bool> used(values.size());
  for (const Json& gold : golds) {
    size_t i = 0;
    while (i < values.size() && (used[i] || !same(values[i], gold))) ++i;
    if (i == values.size()) return false;
    used[i] = true;
  }
  return true;
}

}  // namespace

std::optional<Json> ConsumeLiteral(absl::string_view* text) {
  LiteralParser parser(*text);
  std::optional<Json> value = parser.Value();
  if (value.has_value()) *text = parser.rest();
  return value;
}

std::optional<Json> ParseLiteral(absl::string_view text) {
  std::optional<Json> value = ConsumeLiteral(&text);
  if (!absl::StripAsciiWhitespace(text).empty()) return std::nullopt;
  return value;
}

Json FromJson(const Json& value) {
  if (value.is_number_float()) return Float(value.dump());
  if (value.is_number()) return Int(value.dump());
  if (value.is_array()) {
    Json list = Json::array();
    for (const Json& item : value) list.push_back(FromJson(item));
    return list;
  }
  if (value.is_object()) {
    Json pairs = Json::array();
    for (const auto& [key, item] : value.items())
      pairs.push_back(Json::array({Json(key), FromJson(item)}));
    return {{"dict", pairs}};
  }
  return value;
}

std::optional<double> NumberOf(const Json& value) {
  for (const char* const kind : {"int", "float"}) {
    const Json* const text = Tagged(value, kind);
    if (text == nullptr || !text->is_string()) continue;
    const std::string number = text->get<std::string>();
    double parsed = 0;
    if (!absl::SimpleAtod(number, &parsed)) return std::nullopt;
    return parsed;
  }
  return std::nullopt;
}

bool Equal(const Json& value, const Json& gold, double float_tol) {
  if (value.is_array() && gold.is_array()) {
    if (value.size() != gold.size()) return false;
    for (size_t i = 0; i < gold.size(); ++i) {
      if (!Equal(value[i], gold[i], float_tol)) return false;
    }
    return true;
  }
  if (!value.is_object() || !gold.is_object()) return value == gold;

  const Json *values = Tagged(value, "set"), *golds = Tagged(gold, "set");
  if (values != nullptr && golds != nullptr) {
    return SameItems(*values, *golds,
                     [&](const Json& a, const Json& b) { return Equal(a, b, float_tol); });
  }
  values = Tagged(value, "dict"), golds = Tagged(gold, "dict");
  if (values != nullptr && golds != nullptr) {
    return SameItems(*values, *golds, [&](const Json& a, const Json& b) {
      return a.is_array() && b.is_array() && a.size() == 2 && b.size() == 2 &&
             Equal(a[0], b[0], float_tol) && Equal(a[1], b[1], float_tol);
    });
  }
  return value == gold || NumbersEqual(value, gold, float_tol);
}

bool IsTruthy(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return !value.get<std::string>().empty();
  if (value.is_array()) return !value.empty();
  for (const char* const kind : {"set", "dict", "bytes"}) {
    if (const Json* const items = Tagged(value, kind))
      return items->is_string() ? !items->get<std::string>().empty() : !items->empty();
  }
  const std::optional<double> number = NumberOf(value);
  return !number.has_value() || *number != 0;
}

}  // namespace sluice::code
