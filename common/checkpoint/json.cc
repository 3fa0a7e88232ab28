#include "common/checkpoint/json.h"


#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sluice {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view source, int max_depth, size_t max_values) {
  std::vector<absl::flat_hash_set<std::string>> keys;  // Of each open object or array.
  std::string problem;                                 // The first.
  size_t values = 0;
  const auto count = [&] {
    if (++values > max_values) problem = absl::StrCat("more than ", max_values, " values");
  };
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (!problem.empty()) return false;
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= max_depth) problem = absl::StrCat("nested deeper than ", max_depth);
        count();
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end: keys.pop_back(); break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(value.get<std::string>()).second) {
          problem = absl::StrCat("key \"", Printable(value.get<std::string>()), "\" occurs twice");
        }
        break;
      case Json::parse_event_t::value: count(); break;
    }
    return problem.empty();
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& e) {
    if (problem.empty()) problem = e.what();
  }
  if (!problem.empty()) return absl::InvalidArgumentError(absl::StrCat(source, ": ", problem));
  return json;
}

absl::StatusOr<std::vector<int32_t>> TokenIds(const Json& value) {
  const Json list = value.is_array() ? value : Json::array({value});
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX)) {
      return absl::InvalidArgumentError(absl::StrCat(JsonExcerpt(id), " is no token id, an integer in [0, 2^31) or a list of them is needed"));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string Printable(absl::string_view text) {
  return text.size() <= 80 ? absl::CHexEscape(text) : absl::StrCat(absl::CHexEscape(text.substr(0, 80)), "..");
}

std::string JsonExcerpt(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : absl::StrCat(text.substr(0, 80), "..");
}

}  // namespace sluice
