#include "common/prompt/answers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/verifiers/args.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

// `column` is the key of the job file that names the column.
absl::StatusOr<std::string> AnswerOf(const nlohmann::json& row, const std::string& field,
                                     absl::string_view column) {
  const auto value = row.find(field);
  if (value == row.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the row has no field `", field,
                     "`; name the column that holds it: data.train.N.", column));
  }
  if (!value->is_array()) return GoldText(*value, field);

  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("field `", field, "` is a list, but ", why));
  };
  if (value->empty() || !value->back().is_object()) return refuse("its last item is no message");
  const nlohmann::json& last = value->back();
  const auto role = last.find("role"), content = last.find("content");
  if (role == last.end() || *role != "assistant")
    return refuse("its last message is not the assistant's");
  if (content == last.end() || !content->is_string())
    return refuse("its last message has no text as content");
  return content->get<std::string>();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AnswersOf(absl::string_view kind,
                                                   const nlohmann::json& row) {
  if (kind != "dpo") {
    SLUICE_ASSIGN_OR_RETURN(std::string answer, AnswerOf(row, "answer", "answer"));
    return std::vector<std::string>{std::move(answer)};
  }
  SLUICE_ASSIGN_OR_RETURN(std::string chosen, AnswerOf(row, "chosen", "fields.chosen"));
  SLUICE_ASSIGN_OR_RETURN(std::string rejected, AnswerOf(row, "rejected", "fields.rejected"));
  for (const auto& [field, text] : {std::pair{"chosen", &chosen}, {"rejected", &rejected}}) {
    if (text->empty())
      return absl::InvalidArgumentError(absl::StrCat("field `", field, "` is empty"));
  }
  if (chosen == rejected)
    return absl::InvalidArgumentError("the fields `chosen` and `rejected` are the same");
  return std::vector<std::string>{std::move(chosen), std::move(rejected)};
}

}  // namespace sluice
