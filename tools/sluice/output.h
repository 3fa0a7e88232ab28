#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"

// The formats of a command's result, -o. A command that prints data makes one JSON value of it; the
// formats json, jsonl and yaml all print that value.
namespace sluice::cli {

// Adds -o with table (the default), json, jsonl (a row of data per line) and yaml, and with `more`
// of: wide (a table with more columns) and name (only names, one per line, for scripts).
void AddFormats(CLI::App* app, std::string* output, const std::vector<const char*>& more = {});

// Whether the format prints data: json, jsonl or yaml.
bool IsData(const std::string& output);

// The value in one of these formats, with a newline at the end. With jsonl a list has a line for
// each element. Bytes that are not UTF-8 are replaced.
std::string FormatData(const nlohmann::ordered_json& json, const std::string& output);
// The same of an object that holds lists under `keys`. With jsonl it is a line for each element of
// these lists, and nothing else.
std::string FormatRows(const nlohmann::ordered_json& json, const std::vector<const char*>& keys,
                       const std::string& output);
// Print them on stdout.
void PrintData(const nlohmann::ordered_json& json, const std::string& output);
void PrintRows(const nlohmann::ordered_json& json, const std::vector<const char*>& keys,
               const std::string& output);

}  // namespace sluice::cli
