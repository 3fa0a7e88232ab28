#include "common/verifiers/json_schema.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/answer_part.h"
#include "common/verifiers/pattern.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSchemaSteps = 100'000;
constexpr size_t kBytesOfStep = 64;
constexpr size_t kStepsOfItem = 16;  // Comparisons that find an item in a list.
constexpr size_t kMaxDepth = 64;

// Code points of UTF-8.
uint64_t CountCharacters(const std::string& text) {
  return static_cast<uint64_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// What the value of a keyword must be. Lists and maps of schemas are compiled in turn.
enum class Form {
  kAny,
  kNumber,
  kCount,
  kBool,
  kText,
  kTexts,
  kType,
  kList,
  kSchema,
  kSchemas,
  kSchemaMap
};
struct Keyword {
  absl::string_view name;
  Form form;
};
constexpr Keyword kKeywords[] = {
    {"type", Form::kType},
    {"enum", Form::kList},
    {"const", Form::kAny},
    {"properties", Form::kSchemaMap},
    {"required", Form::kTexts},
    {"additionalProperties", Form::kSchema},
    {"minProperties", Form::kCount},
    {"maxProperties", Form::kCount},
    {"items", Form::kSchema},
    {"prefixItems", Form::kSchemas},
    {"minItems", Form::kCount},
    {"maxItems", Form::kCount},
    {"uniqueItems", Form::kBool},
    {"minLength", Form::kCount},
    {"maxLength", Form::kCount},
    {"pattern", Form::kText},
    {"minimum", Form::kNumber},
    {"maximum", Form::kNumber},
    {"exclusiveMinimum", Form::kNumber},
    {"exclusiveMaximum", Form::kNumber},
    {"multipleOf", Form::kNumber},
    {"anyOf", Form::kSchemas},
    {"allOf", Form::kSchemas},
    {"oneOf", Form::kSchemas},
    {"not", Form::kSchema},
    {"$ref", Form::kText},
    {"$defs", Form::kSchemaMap},
    {"definitions", Form::kSchemaMap},
    {"$schema", Form::kAny},
    {"$id", Form::kAny},
    {"$comment", Form::kAny},
    {"title", Form::kAny},
    {"description", Form::kAny},
    {"default", Form::kAny},
    {"examples", Form::kAny},
};
constexpr absl::string_view kTypes[] = {"null",   "boolean", "object", "array",
                                        "number", "integer", "string"};

bool IsType(const json& value) {
  if (!value.is_string()) return false;
  for (const absl::string_view type : kTypes) {
    if (value.get_ref<const std::string&>() == type) return true;
  }
  return false;
}

// Whether a keyword's value has its form, but for schemas inside.
bool HasForm(const json& value, Form form) {
  const auto all = [&](auto holds) {
    for (const json& item : value) {
      if (!holds(item)) return false;
    }
    return true;
  };
  switch (form) {
    case Form::kAny: return true;
    case Form::kNumber: return value.is_number();
    case Form::kCount: return value.is_number_unsigned();
    case Form::kBool: return value.is_boolean();
    case Form::kText: return value.is_string();
    case Form::kTexts:
      return value.is_array() && all([](const json& item) { return item.is_string(); });
    case Form::kType: return IsType(value) || (value.is_array() && !value.empty() && all(IsType));
    case Form::kList: return value.is_array() && !value.empty();
    case Form::kSchema: return value.is_object() || value.is_boolean();
    case Form::kSchemas: return value.is_array() && !value.empty();
    case Form::kSchemaMap: return value.is_object();
  }
  return false;
}

// A schema whose keywords are known and whose patterns and references have been resolved.
class Schema {
 public:
  static absl::StatusOr<Schema> Make(json root) {
    if (JsonDepth(root.dump()) > kMaxDepth)
      return absl::InvalidArgumentError("it nests more than 64 levels deep");
    Schema schema;
    schema.root_ = std::make_unique<const json>(std::move(root));
    SLUICE_RETURN_IF_ERROR(schema.Compile(*schema.root_, "#"));
    // A value that is no schema, such as an example, was not compiled.
    for (const auto& [ref, target] : schema.refs_) {
      if (!schema.compiled_.contains(target))
        return absl::InvalidArgumentError(
            absl::StrCat("$ref \"", ref, "\" names no schema within this one"));
    }
    return schema;
  }

  const json& root() const { return *root_; }
  const RE2& pattern(const std::string& text) const { return *patterns_.at(text); }
  const json& Resolve(const std::string& ref) const { return *refs_.at(ref); }

 private:
  absl::Status Compile(const json& schema, const std::string& at) {
    compiled_.insert(&schema);
    if (schema.is_boolean()) return absl::OkStatus();
    if (!schema.is_object())
      return absl::InvalidArgumentError(absl::StrCat(at, " is no object, true or false"));
    for (const auto& [name, value] : schema.items()) {
      const std::string place = absl::StrCat(at, "/", name);
      const Keyword* keyword = nullptr;
      for (const Keyword& known : kKeywords) {
        if (known.name == name) keyword = &known;
      }
      if (keyword == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat(place, ": this build does not check \"", name, "\"; it knows ",
                         absl::StrJoin(kKeywords, " ", [](std::string* out, const Keyword& known) {
                           absl::StrAppend(out, known.name);
                         })));
      }
      if (!HasForm(value, keyword->form))
        return absl::InvalidArgumentError(
            absl::StrCat(place, " is ", Utf8Prefix(value.dump(), 60), ", which it cannot be"));
      SLUICE_RETURN_IF_ERROR(CompileValue(*keyword, value, place));
    }
    return absl::OkStatus();
  }

  absl::Status CompileValue(const Keyword& keyword, const json& value, const std::string& place) {
    if (keyword.form == Form::kSchema) return Compile(value, place);
    if (keyword.form == Form::kSchemas || keyword.form == Form::kSchemaMap) {
      for (const auto& [key, part] : value.items())
        SLUICE_RETURN_IF_ERROR(Compile(part, absl::StrCat(place, "/", key)));
      return absl::OkStatus();
    }
    if (keyword.name == "multipleOf" && !(value.get<double>() > 0))
      return absl::InvalidArgumentError(absl::StrCat(place, " must be above 0"));
    if (keyword.name == "pattern") return AddPattern(value.get<std::string>(), place);
    if (keyword.name == "$ref") return AddRef(value.get<std::string>(), place);
    return absl::OkStatus();
  }

  absl::Status AddPattern(const std::string& text, const std::string& place) {
    absl::StatusOr<std::unique_ptr<RE2>> pattern = CompilePattern(text);
    if (!pattern.ok()) return Annotate(pattern.status(), place);
    patterns_[text] = *std::move(pattern);
    return absl::OkStatus();
  }

  absl::Status AddRef(const std::string& ref, const std::string& place) {
    const bool local = ref == "#" || absl::StartsWith(ref, "#/");
    const json* target = nullptr;
    try {
      if (local) target = &root_->at(json::json_pointer(ref.substr(1)));
    } catch (const json::exception&) {  // No such place; a pointer has no check without a throw.
    }
    if (target == nullptr || !HasForm(*target, Form::kSchema))
      return absl::InvalidArgumentError(
          absl::StrCat(place, " is \"", ref, "\", which is no schema within this one"));
    refs_[ref] = target;
    return absl::OkStatus();
  }

  std::unique_ptr<const json> root_;  // Its address is that of all references into it.
  std::map<std::string, std::unique_ptr<RE2>> patterns_;
  std::map<std::string, const json*> refs_;
  std::set<const json*> compiled_;
};

// Checks one value. The answer to a check is worth nothing once exhausted() is true.
class Checker {
 public:
  explicit Checker(const Schema& schema) : schema_(schema) {}

  bool Accepts(const json& schema, const json& value, size_t depth = 0) {
    if (depth > kMaxDepth) exhausted_ = true;
    Count(1);
    if (exhausted_) return false;
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [name, rule] : schema.items()) {
      if (!Holds(schema, name, rule, value, depth)) return false;
    }
    return true;
  }
  bool exhausted() const { return exhausted_; }

 private:
  void Count(size_t steps) {
    steps_ += static_cast<int64_t>(steps);
    if (steps_ > kMaxSchemaSteps) exhausted_ = true;
  }
  // Of a text that is looked at, or of a value that is compared.
  void CountBytes(const json& value) {
    Count(1 + (value.is_string() ? value.get_ref<const std::string&>().size() : 16 * value.size()) /
                  kBytesOfStep);
  }

  bool HasType(const json& value, const std::string& type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "number") return value.is_number();
    // 1.0 is an integer in JSON Schema.
    return value.is_number_integer() ||
           (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
  }

  size_t CountAccepting(const json& schemas, const json& value, size_t depth) {
    size_t count = 0;
    for (const json& schema : schemas) count += Accepts(schema, value, depth + 1);
    return count;
  }

  bool Holds(const json& schema, const std::string& name, const json& rule, const json& value,
             size_t depth) {
    if (name == "type") {
      if (rule.is_string()) return HasType(value, rule.get<std::string>());
      for (const json& type : rule) {
        if (HasType(value, type.get<std::string>())) return true;
      }
      return false;
    }
    if (name == "const") {
      CountBytes(value);
      return value == rule;
    }
    if (name == "enum") return Contains(rule, value);
    if (name == "anyOf") return CountAccepting(rule, value, depth) > 0;
    if (name == "allOf") return CountAccepting(rule, value, depth) == rule.size();
    if (name == "oneOf") return CountAccepting(rule, value, depth) == 1;
    if (name == "not") return !Accepts(rule, value, depth + 1);
    if (name == "$ref") return Accepts(schema_.Resolve(rule.get<std::string>()), value, depth + 1);
    if (value.is_object()) return ObjectHolds(schema, name, rule, value, depth);
    if (value.is_array()) return ArrayHolds(schema, name, rule, value, depth);
    if (value.is_string()) return TextHolds(name, rule, value);
    if (value.is_number()) return NumberHolds(name, rule, value);
    return true;
  }

  bool Contains(const json& list, const json& value) {
    for (const json& item : list) {
      CountBytes(value);
      if (exhausted_) return false;
      if (item == value) return true;
    }
    return false;
  }

  bool ObjectHolds(const json& schema, const std::string& name, const json& rule, const json& value,
                   size_t depth) {
    if (name == "minProperties") return value.size() >= rule.get<uint64_t>();
    if (name == "maxProperties") return value.size() <= rule.get<uint64_t>();
    if (name == "required") {
      for (const json& key : rule) {
        if (!value.contains(key.get<std::string>())) return false;
      }
    } else if (name == "properties") {
      for (const auto& [key, part] : rule.items()) {
        const auto found = value.find(key);
        if (found != value.end() && !Accepts(part, *found, depth + 1)) return false;
      }
    } else if (name == "additionalProperties") {
      const auto known = schema.find("properties");
      for (const auto& [key, part] : value.items()) {
        if (known != schema.end() && known->contains(key)) continue;
        if (!Accepts(rule, part, depth + 1)) return false;
      }
    }
    return true;
  }

  bool ArrayHolds(const json& schema, const std::string& name, const json& rule, const json& value,
                  size_t depth) {
    if (name == "minItems") return value.size() >= rule.get<uint64_t>();
    if (name == "maxItems") return value.size() <= rule.get<uint64_t>();
    if (name == "prefixItems") {
      for (size_t i = 0; i < std::min(rule.size(), value.size()); ++i) {
        if (!Accepts(rule[i], value[i], depth + 1)) return false;
      }
    } else if (name == "items") {
      const auto prefix = schema.find("prefixItems");
      for (size_t i = prefix == schema.end() ? 0 : prefix->size(); i < value.size(); ++i) {
        if (!Accepts(rule, value[i], depth + 1)) return false;
      }
    } else if (name == "uniqueItems" && rule.get<bool>()) {
      const auto before = [](const json* a, const json* b) { return *a < *b; };
      std::set<const json*, decltype(before)> seen(before);
      for (const json& item : value) {
        Count(kStepsOfItem);
        CountBytes(item);
        if (exhausted_ || !seen.insert(&item).second) return false;
      }
    }
    return true;
  }

  bool TextHolds(const std::string& name, const json& rule, const json& value) {
    const std::string& text = value.get_ref<const std::string&>();
    CountBytes(value);
    if (name == "minLength") return CountCharacters(text) >= rule.get<uint64_t>();
    if (name == "maxLength") return CountCharacters(text) <= rule.get<uint64_t>();
    if (name == "pattern") return RE2::PartialMatch(text, schema_.pattern(rule.get<std::string>()));
    return true;
  }

  bool NumberHolds(const std::string& name, const json& rule, const json& value) {
    if (!rule.is_number()) return true;
    const double number = value.get<double>(), bound = rule.get<double>();
    if (name == "minimum") return number >= bound;
    if (name == "maximum") return number <= bound;
    if (name == "exclusiveMinimum") return number > bound;
    if (name == "exclusiveMaximum") return number < bound;
    if (name != "multipleOf") return true;
    if (value.is_number_integer() && rule.is_number_integer())
      return value.get<int64_t>() % rule.get<int64_t>() == 0;
    // 0.3 is a multiple of 0.1, though not of the double that stands for it: a few roundings count
    // as none.
    const double ratio = number / bound;
    return std::abs(ratio - std::round(ratio)) <= 4 * DBL_EPSILON * std::abs(ratio);
  }

  const Schema& schema_;
  int64_t steps_ = 0;
  bool exhausted_ = false;
};

// The JSON that the answer finally states.
absl::string_view JsonPart(absl::string_view text) {
  constexpr absl::string_view kFence = "```";
  const size_t end = text.rfind(kFence);
  if (end != absl::string_view::npos && end > 0) {
    const size_t begin = text.rfind(kFence, end - 1);
    if (begin != absl::string_view::npos) {
      const absl::string_view block = text.substr(begin + 3, end - begin - 3);
      const size_t line = block.find('\n');  // The first line names the language.
      return line == absl::string_view::npos ? block : block.substr(line + 1);
    }
  }
  return LastTag(text, "answer").value_or(text);
}

// Parses strict JSON. Sets *why if the text is none.
std::optional<json> ParseStrict(absl::string_view text, const char** why) {
  // The parser takes a NUL as the end of the text.
  *why = absl::StrContains(text, '\0') ? "no_json" : "too_complex";
  if (absl::StrContains(text, '\0') || JsonDepth(text) > kMaxDepth) return std::nullopt;
  std::vector<std::set<std::string>> keys;  // Of the objects that are open.
  bool twice = false;
  const json::parser_callback_t note = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key)
      twice |= !keys.back().insert(parsed.get<std::string>()).second;
    return true;
  };
  json value = json::parse(text.begin(), text.end(), note, /*allow_exceptions=*/false);
  *why = twice ? "key_twice" : "no_json";
  if (value.is_discarded() || twice) return std::nullopt;
  return value;
}

class JsonSchema : public Verifier {
 public:
  explicit JsonSchema(std::optional<Schema> schema) : schema_(std::move(schema)) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const json& row) const override {
    if (schema_) return Check(*schema_, answer);
    SLUICE_ASSIGN_OR_RETURN(const Schema schema, SchemaOf(row));
    return Check(schema, answer);
  }
  absl::Status CheckRow(const json& row) const override {
    return schema_ ? absl::OkStatus() : SchemaOf(row).status();
  }

 private:
  static absl::StatusOr<Schema> SchemaOf(const json& row) {
    const auto schema = row.find("schema");
    if (schema == row.end())
      return absl::InvalidArgumentError(
          "the row has no field `schema`, and the reward has no args.schema");
    absl::StatusOr<Schema> made = Schema::Make(*schema);
    return made.ok() ? std::move(made) : Annotate(made.status(), "field `schema`");
  }

  static Verdict Check(const Schema& schema, const Answer& answer) {
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return {.reason = "unfinished"};
    const char* why = nullptr;
    const std::optional<json> value = ParseStrict(absl::StripAsciiWhitespace(JsonPart(text)), &why);
    if (!value) return {.reason = why};
    Checker checker(schema);
    const bool accepts = checker.Accepts(schema.root(), *value);
    if (checker.exhausted()) return {.reason = "too_complex"};
    return accepts ? Verdict{.score = 1, .reason = "right"} : Verdict{.reason = "wrong"};
  }

  const std::optional<Schema> schema_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeJsonSchema(const json& args) {
  std::optional<Schema> schema;
  for (const auto& [name, value] : args.items()) {
    if (name != "schema")
      return absl::InvalidArgumentError(
          absl::StrCat("json_schema: args.", name, " is unknown; the known ones are: schema"));
    absl::StatusOr<Schema> made = Schema::Make(value);
    if (!made.ok()) return Annotate(made.status(), "json_schema: args.schema");
    schema = *std::move(made);
  }
  return std::make_unique<JsonSchema>(std::move(schema));
}

}  // namespace sluice
