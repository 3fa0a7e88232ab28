#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace sluice::cli {

// Which columns of a file hold the fields of its rows, as --prompt, --answer and --field say.
struct ColumnFlags {
  std::string prompt = "prompt", answer = "answer";
  std::vector<std::string> fields;  // NAME=COLUMN.
};

void AddColumnFlags(CLI::App* app, ColumnFlags* flags);

// Maps each field to its column. INVALID_ARGUMENT: a --field is malformed, or names a field twice.
absl::StatusOr<std::map<std::string, std::string>> FieldsOf(const ColumnFlags& flags);

}  // namespace sluice::cli
