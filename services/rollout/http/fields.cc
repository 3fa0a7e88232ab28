#include "services/rollout/http/fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/json_excerpt.h"
#include "common/base/nearest.h"
#include "common/checkpoint/json.h"
#include "services/rollout/http/error.h"

namespace sluice::rollout::http {

const Json* Fields::Find(absl::string_view name) {
  asked_.emplace_back(name);
  const auto it = object_.find(std::string(name));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::Fail(absl::string_view name, absl::string_view message) {
  const std::string field = absl::StrCat(path_, name);
  if (status_.ok()) status_ = Refuse(400, "invalid_value", field, absl::StrCat(field, message));
}

void Fields::FailUnfit(absl::string_view name, const Json& value, absl::string_view wanted) {
  Fail(name, absl::StrCat(" is ", JsonExcerpt(value), "; wanted: ", wanted));
}

void Fields::FailUnsupported(absl::string_view name, const Json& value, absl::string_view why) {
  const std::string field = absl::StrCat(path_, name);
  if (status_.ok())
    status_ = Refuse(400, "unsupported_value", field,
                     absl::StrCat(field, " is ", JsonExcerpt(value), ": this build ", why));
}

void Fields::Bool(absl::string_view name, bool* value) {
  const Json* const given = Find(name);
  if (given == nullptr) return;
  if (!given->is_boolean()) return FailUnfit(name, *given, "true or false");
  *value = given->get<bool>();
}

void Fields::Number(absl::string_view name, double low, double high, double* value) {
  const Json* const given = Find(name);
  if (given == nullptr) return;
  const double number =
      given->is_number() ? given->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= low && number <= high))
    return FailUnfit(name, *given, absl::StrCat("a number from ", low, " to ", high));
  *value = number;
}

void Fields::Integer(absl::string_view name, int64_t low, int64_t high,
                     std::optional<uint32_t>* value) {
  const Json* const given = Find(name);
  if (given == nullptr) return;
  const bool fits =
      given->is_number_integer() &&
      (!given->is_number_unsigned() || given->get<uint64_t>() <= static_cast<uint64_t>(high)) &&
      given->get<int64_t>() >= low && given->get<int64_t>() <= high;
  if (!fits) return FailUnfit(name, *given, absl::StrCat("an integer from ", low, " to ", high));
  *value = given->get<uint32_t>();
}

void Fields::Integer(absl::string_view name, int64_t low, int64_t high, uint32_t* value) {
  std::optional<uint32_t> given;
  Integer(name, low, high, &given);
  if (given) *value = *given;
}

void Fields::Text(absl::string_view name, std::string* value) {
  const Json* const given = Find(name);
  if (given == nullptr) return;
  if (!given->is_string()) return FailUnfit(name, *given, "a text");
  *value = given->get<std::string>();
}

void Fields::Ids(absl::string_view name, size_t most, std::vector<int32_t>* ids) {
  const Json* const given = Find(name);
  if (given == nullptr) return;
  if (given->is_array() && given->size() > most)
    return Fail(name, absl::StrCat(" has ", given->size(), " ids; at most ", most, " are taken"));
  auto read = ParseTokenIds(*given);
  if (!read.ok()) return Fail(name, absl::StrCat(": ", read.status().message()));
  *ids = *std::move(read);
}

absl::Status Fields::Finish() {
  if (!status_.ok()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) continue;
    const std::vector<absl::string_view> known(asked_.begin(), asked_.end());
    const absl::string_view near = NearestMatch(name, known);
    const std::string field = absl::StrCat(path_, Printable(name));
    return Refuse(400, "unknown_parameter", field,
                  absl::StrCat("unknown field ", field,
                               near.empty() ? "; this server accepts only fields that it supports"
                                            : absl::StrCat("; did you mean ", near, "?")));
  }
  return absl::OkStatus();
}

}  // namespace sluice::rollout::http
