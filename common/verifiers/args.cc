#include "common/verifiers/args.h"

#include <algorithm>
#include <cmath>

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
  if (status_.ok())
    status_ = absl::InvalidArgumentError(absl::StrCat(owner_, ": args.", name, " ", what));
}

std::string ArgReader::String(absl::string_view name, absl::string_view fallback) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  Complain(name, absl::StrCat("is ", value->dump(), "; a string is needed"));
  return std::string(fallback);
}

bool ArgReader::Bool(absl::string_view name, bool fallback) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Complain(name, absl::StrCat("is ", value->dump(), "; true or false is needed"));
  return fallback;
}

double ArgReader::Number(absl::string_view name, double fallback, double low, double high) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_number() && value->get<double>() >= low && value->get<double>() <= high)
    return value->get<double>();
  Complain(name,
           absl::StrCat("is ", value->dump(), "; a number from ", low, " to ", high, " is needed"));
  return fallback;
}

int64_t ArgReader::Integer(absl::string_view name, int64_t fallback, int64_t low, int64_t high) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_number_integer() && *value >= low && *value <= high) return value->get<int64_t>();
  Complain(name, absl::StrCat("is ", value->dump(), "; a whole number from ", low, " to ", high,
                              " is needed"));
  return fallback;
}

std::vector<std::string> ArgReader::Strings(absl::string_view name) {
  std::vector<std::string> out;
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return out;
  if (value->is_string()) return {value->get<std::string>()};
  if (value->is_array() &&
      std::all_of(value->begin(), value->end(), [](const auto& item) { return item.is_string(); }))
    return value->get<std::vector<std::string>>();
  Complain(name, absl::StrCat("is ", value->dump(), "; a list of strings is needed"));
  return out;
}

nlohmann::json ArgReader::Object(absl::string_view name) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return nlohmann::json::object();
  if (value->is_object()) return *value;
  Complain(name, absl::StrCat("is ", value->dump(), "; a mapping is needed"));
  return nlohmann::json::object();
}

absl::Status ArgReader::Finish() {
  if (!args_.is_object() && !args_.is_null())
    return absl::InvalidArgumentError(absl::StrCat(owner_, ": args is not a mapping"));
  // An argument that nobody asked for is a mistake.
  for (const auto& [name, unused] : args_.items()) {
    if (std::find(read_.begin(), read_.end(), name) == read_.end())
      Complain(name, absl::StrCat("is unknown; the known ones are: ", absl::StrJoin(read_, ", ")));
  }
  return status_;
}

namespace {
// Describes a value that cannot be a gold, for messages. Lists and objects are named by their type,
// because they may have any size.
std::string NameValue(const nlohmann::json& value) {
  const bool brief = value.is_null() || value.is_boolean() || value.is_number();
  return brief ? value.dump() : absl::StrCat("an ", value.type_name());
}

// Whether the number may have lost digits. JSON reads a whole number as a double only if it does
// not fit in 64 bits; its last digits are lost then.
bool LosesDigits(double number) { return std::abs(number) >= 0x1p53; }
}  // namespace

absl::StatusOr<std::string> GoldText(const nlohmann::json& gold, absl::string_view field) {
  if (gold.is_string()) return gold.get<std::string>();
  if (!gold.is_number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("field `", field, "` is ", NameValue(gold), ", wanted: a text or a number"));
  }
  if (gold.is_number_float() && LosesDigits(gold.get<double>())) {
    return absl::InvalidArgumentError(
        absl::StrCat("field `", field, "` is the number ", gold.dump(),
                     ", which is too large to be read exactly; write it as a text, in quotes"));
  }
  return gold.dump();
}

absl::StatusOr<std::string> GoldOf(const nlohmann::json& row) {
  const auto it = row.find("answer");
  if (it == row.end()) {
    return absl::InvalidArgumentError(
        "the row has no field `answer`; name the column that holds the reference answer: "
        "data.train.N.answer");
  }
  return GoldText(*it);
}

}  // namespace sluice
