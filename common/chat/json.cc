#include "common/chat/json.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/chat/print.h"
#include "common/chat/text.h"
#include "nlohmann/json.hpp"

namespace sluice::chat {
namespace {

using Json = nlohmann::ordered_json;

Value FromText(Meter& meter, const std::string& text) {
  if (text.size() > UINT32_MAX) meter.Exceeded("a text of the variables is longer than 4 GiB");
  if (!IsAscii(text) && !IsUtf8(text)) meter.Invalid("a text of the variables is not UTF-8");
  return Value::Borrow(text);
}

class Writer {
 public:
  Writer(Meter& meter, const JsonStyle& style, std::string* out)
      : meter_(meter), style_(style), out_(out) {}

  void Write(const Value& value) {
    meter_.Step();
    switch (value.kind()) {
      case Value::kNone: out_->append("null"); break;
      case Value::kBool: out_->append(value.boolean() ? "true" : "false"); break;
      case Value::kInt: absl::StrAppend(out_, value.integer()); break;
      case Value::kFloat: WriteFloat(value.real()); break;
      case Value::kText:
      case Value::kString: WriteText(value.text()); break;
      case Value::kArray:
        if (value.array().kind > Array::kTuple) Refuse(value);
        WriteList(value.array());
        break;
      case Value::kDict: WriteObject(value.dict()); break;
      default: Refuse(value);
    }
    meter_.CheckText(out_->size());
  }

 private:
  [[noreturn]] void Refuse(const Value& value) const {
    meter_.Invalid(
        absl::StrCat("cannot write as JSON: ", value.is(Value::kUndefined)
                                                   ? absl::StrCat(value.text(), " is undefined")
                                                   : std::string(TypeName(value))));
  }

  void WriteFloat(double value) {
    if (std::isnan(value)) {
      out_->append("NaN");
    } else if (std::isinf(value)) {
      out_->append(value > 0 ? "Infinity" : "-Infinity");
    } else {
      AppendFloat(value, out_);
    }
  }

  void WriteText(absl::string_view text) {
    meter_.CheckText(out_->size() + text.size());
    meter_.WorkOnBytes(text.size());
    out_->push_back('"');
    size_t plain = 0;  // Begin of the current stretch without escapes.
    for (size_t at = 0; at < text.size();) {
      const auto c = static_cast<uint8_t>(text[at]);
      if (c >= 0x20 && c != '"' && c != '\\' && !(style_.ascii && c >= 0x80)) {
        ++at;
        continue;
      }
      out_->append(text.data() + plain, at - plain);
      WriteEscape(NextCodePoint(text, &at));
      plain = at;
    }
    out_->append(text.data() + plain, text.size() - plain);
    out_->push_back('"');
  }

  void WriteEscape(char32_t c) {
    constexpr absl::string_view kPlain = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
    if (const size_t i = c < 0x80 ? kPlain.find(static_cast<char>(c)) : absl::string_view::npos;
        i != absl::string_view::npos) {
      out_->push_back('\\');
      out_->push_back(kNames[i]);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(out_, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      const uint32_t rest = c - 0x10000;
      absl::StrAppendFormat(out_, "\\u%04x\\u%04x", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    }
  }

  void WriteNewLine() {
    if (!style_.indented) return;
    out_->push_back('\n');
    for (int i = 0; i < level_; ++i) out_->append(style_.indent);
  }

  void WriteList(const Array& array) {
    if (array.items.empty()) return out_->append("[]"), void();
    out_->push_back('[');
    ++level_;
    for (size_t i = 0; i < array.items.size(); ++i) {
      if (i > 0) out_->append(style_.item_separator);
      WriteNewLine();
      Write(array.items[i]);
    }
    --level_;
    WriteNewLine();
    out_->push_back(']');
  }

  void WriteObject(const Dict& dict) {
    if (dict.items.empty()) return out_->append("{}"), void();
    // Python sorts by the keys themselves, before they become texts.
    std::vector<const std::pair<Value, Value>*> items;
    if (style_.sort_keys) {
      for (const auto& item : dict.items) items.push_back(&item);
      std::stable_sort(items.begin(), items.end(), [&](const auto* a, const auto* b) {
        return Less(meter_, a->first, b->first);
      });
    }

    out_->push_back('{');
    ++level_;
    for (size_t i = 0; i < dict.items.size(); ++i) {
      const auto& [key, value] = style_.sort_keys ? *items[i] : dict.items[i];
      if (i > 0) out_->append(style_.item_separator);
      WriteNewLine();
      WriteKey(key);
      out_->append(style_.key_separator);
      Write(value);
    }
    --level_;
    WriteNewLine();
    out_->push_back('}');
  }

  void WriteKey(const Value& key) {
    if (key.is_string()) return WriteText(key.text());
    if (key.kind() > Value::kFloat || key.is(Value::kUndefined))
      meter_.Invalid(absl::StrCat("cannot write as JSON: a key that is a ", TypeName(key)));
    out_->push_back('"');
    Write(key);
    out_->push_back('"');
  }

  Meter& meter_;
  const JsonStyle& style_;
  std::string* const out_;
  int level_ = 0;
};

}  // namespace

Value FromJson(Meter& meter, const Json& json, Memory* arena) {
  switch (json.type()) {
    case Json::value_t::null: return Value::None();
    case Json::value_t::boolean: return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer: return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX)
        meter.Invalid(absl::StrCat("the integer ", json.get<uint64_t>(),
                                   " of the variables is beyond 64 bits"));
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_float: return Value::Float(json.get<double>());
    case Json::value_t::string: return FromText(meter, json.get_ref<const std::string&>());
    default: meter.Invalid("the variables hold a value that is not JSON");
    case Json::value_t::array:
    case Json::value_t::object: break;
  }

  const NestedIn level(meter);
  if (json.is_array()) {
    ArrayBuilder array(meter, Array::kList, arena);
    array.Reserve(json.size());
    for (const Json& item : json.get_ref<const Json::array_t&>())
      array.Add(FromJson(meter, item, arena));
    return std::move(array).Take();
  }

  DictBuilder dict(meter, arena);
  dict.Reserve(json.size());
  for (const auto& [key, value] : json.get_ref<const Json::object_t&>())
    dict.Add(FromText(meter, key), FromJson(meter, value, arena));
  return std::move(dict).Take();
}

std::string ToJson(Meter& meter, const Value& value, const JsonStyle& style) {
  std::string out;
  Writer(meter, style, &out).Write(value);
  return out;
}

}  // namespace sluice::chat
