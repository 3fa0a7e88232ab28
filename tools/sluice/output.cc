#include "tools/sluice/output.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string DumpLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Whether YAML reads the text without quotes as the same text.
bool IsPlainYaml(const std::string& text) {
  static const std::set<std::string> words = {"true", "false", "null", "yes", "no",  "on",
                                              "off",  "y",     "n",    "nan", "inf", "infinity"};
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
  };
  if (text.empty() || !(absl::ascii_isalpha(text[0]) || text[0] == '_' || text[0] == '/'))
    return false;
  for (const char c : text) {
    if (!is_plain(c)) return false;
  }
  return words.count(absl::AsciiStrToLower(text)) == 0;
}

// A text in double quotes is written in YAML as in JSON.
std::string YamlScalar(const Json& json) {
  if (json.is_string() && IsPlainYaml(json.get_ref<const std::string&>()))
    return json.get<std::string>();
  return DumpLine(json);
}

void AppendYaml(const Json& json, int indent, std::string* out) {
  const std::string space(static_cast<size_t>(indent), ' ');
  // Whether the value needs lines of its own.
  const auto is_block = [](const Json& value) { return value.is_structured() && !value.empty(); };
  const auto append_value = [&](const Json& value) {
    if (is_block(value)) {
      *out += '\n';
      AppendYaml(value, indent + 2, out);
    } else {
      absl::StrAppend(out, " ", YamlScalar(value), "\n");
    }
  };

  if (!is_block(json)) {
    absl::StrAppend(out, space, YamlScalar(json), "\n");
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      absl::StrAppend(out, space, YamlScalar(key), ":");
      append_value(value);
    }
  } else {
    for (const Json& value : json) {
      absl::StrAppend(out, space, "-");
      append_value(value);
    }
  }
}

}  // namespace

void AddFormats(CLI::App* app, std::string* output, const std::vector<const char*>& more) {
  *output = "table";
  std::set<std::string> formats(more.begin(), more.end());
  formats.insert({"table", "json", "jsonl", "yaml"});
  app->add_option("-o,--output", *output, "format of the result")
      ->check(CLI::IsMember(formats))
      ->capture_default_str();
}

bool IsData(const std::string& output) {
  return output == "json" || output == "jsonl" || output == "yaml";
}

std::string FormatData(const Json& json, const std::string& output) {
  std::string text;
  if (output == "yaml") {
    AppendYaml(json, 0, &text);
  } else if (output == "jsonl" && json.is_array()) {
    for (const Json& row : json) absl::StrAppend(&text, DumpLine(row), "\n");
  } else if (output == "jsonl") {
    absl::StrAppend(&text, DumpLine(json), "\n");
  } else {
    absl::StrAppend(&text, json.dump(2, ' ', false, Json::error_handler_t::replace), "\n");
  }
  return text;
}

std::string FormatRows(const Json& json, const std::vector<const char*>& keys,
                       const std::string& output) {
  if (output != "jsonl") return FormatData(json, output);
  std::string text;
  for (const char* key : keys) text += FormatData(json.at(key), output);
  return text;
}

void PrintData(const Json& json, const std::string& output) {
  std::fputs(FormatData(json, output).c_str(), stdout);
}

void PrintRows(const Json& json, const std::vector<const char*>& keys, const std::string& output) {
  std::fputs(FormatRows(json, keys, output).c_str(), stdout);
}

}  // namespace sluice::cli
