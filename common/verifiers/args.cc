#include "common/verifiers/args.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {

const nlohmann::json* ArgReader::Find(absl::string_view name) {
  read_.emplace_back(name);
  if (!args_.is_object()) return nullptr;
  const auto it = args_.find(std::string(name));
  return it == args_.end() ? nullptr : &*it;
}

void ArgReader::Complain(absl::string_view name, absl::string_view what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(owner_, ": args.", name, " ", what));
}

std::string ArgReader::String(absl::string_view name, absl::string_view fallback) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  Complain(name, absl::StrCat("is ", value->dump(), ", a string is needed"));
  return std::string(fallback);
}

bool ArgReader::Bool(absl::string_view name, bool fallback) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Complain(name, absl::StrCat("is ", value->dump(), ", true or false is needed"));
  return fallback;
}

double ArgReader::Number(absl::string_view name, double fallback, double low, double high) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_number() && value->get<double>() >= low && value->get<double>() <= high) return value->get<double>();
  Complain(name, absl::StrCat("is ", value->dump(), ", a number from ", low, " to ", high, " is needed"));
  return fallback;
}

std::vector<std::string> ArgReader::Strings(absl::string_view name) {
  std::vector<std::string> out;
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return out;
  if (value->is_string()) return {value->get<std::string>()};
  if (value->is_array() && std::all_of(value->begin(), value->end(), [](const auto& item) { return item.is_string(); })) return value->get<std::vector<std::string>>();
  Complain(name, absl::StrCat("is ", value->dump(), ", a list of strings is needed"));
  return out;
}

absl::Status ArgReader::Finish() {
  if (!args_.is_object() && !args_.is_null()) return absl::InvalidArgumentError(absl::StrCat(owner_, ": args is no mapping"));
  for (const auto& [name, unused] : args_.items()) {
    if (std::find(read_.begin(), read_.end(), name) == read_.end()) Complain(name, absl::StrCat("is unknown; there are: ", absl::StrJoin(read_, ", ")));
  }
  return status_;
}

absl::StatusOr<std::string> GoldOf(const nlohmann::json& row) {
  const auto it = row.find("answer");
  if (it == row.end() || !it->is_string()) return absl::InvalidArgumentError("the row has no text in its field `answer`");
  return it->get<std::string>();
}

}  // namespace sluice
