#include "tools/sluice/column_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice::cli {

void AddColumnFlags(CLI::App* app, ColumnFlags* flags) {
  app->add_option("--prompt", flags->prompt, "the column with the prompt")->capture_default_str();
  app->add_option("--answer", flags->answer, "the column with the answer")->capture_default_str();
  app->add_option("--field", flags->fields, "NAME=COLUMN, a further field; may be repeated")
      ->allow_extra_args(false);
}

absl::StatusOr<std::map<std::string, std::string>> FieldsOf(const ColumnFlags& flags) {
  std::map<std::string, std::string> fields = {{"prompt", flags.prompt}, {"answer", flags.answer}};
  for (const std::string& field : flags.fields) {
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(field, absl::MaxSplits('=', 1));
    if (halves.first.empty() || halves.second.empty())
      return absl::InvalidArgumentError(
          absl::StrCat("--field is '", field, "'; wanted: NAME=COLUMN"));
    if (!fields.insert(halves).second)
      return absl::InvalidArgumentError(absl::StrCat("--field ", field, ": the field ",
                                                     halves.first, " has a column already, ",
                                                     fields[halves.first]));
  }
  return fields;
}

}  // namespace sluice::cli
