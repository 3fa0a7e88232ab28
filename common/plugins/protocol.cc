#include "common/plugins/protocol.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/json_depth.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kMostInFlight = 256;
constexpr size_t kMaxParts = 64;
constexpr size_t kMaxError = 2000;

std::string Line(const Json& message) {
  // Rows and answers may hold bytes that are not UTF-8, at which dump() throws by default.
  return message.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Json> ParseObject(absl::string_view line) {
  if (JsonDepth(line) > kMaxPluginDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("it wrote a line that nests more than ", kMaxPluginDepth, " levels deep"));
  }
  Json object = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  return absl::InvalidArgumentError(
      absl::StrCat("it wrote a line that is no JSON object: ",
                   Excerpt(Utf8Lossy(line.substr(0, std::min<size_t>(line.size(), 200))))));
}

PluginResult ErrorResult(std::string error, bool retryable = false) {
  PluginResult result;
  result.error = std::move(error);
  result.retryable = retryable;
  return result;
}

// A number that may count as a score.
bool IsScore(const Json& value) { return value.is_number() && std::isfinite(value.get<double>()); }

// The scores that the self-test wants for its items; empty if they are no scores.
std::vector<double> ScoresOf(const Json& score, size_t items) {
  std::vector<double> scores;
  const Json list = score.is_array() ? score : Json::array({score});
  for (const Json& one : list) {
    if (IsScore(one)) scores.push_back(one.get<double>());
  }
  if (scores.size() != items || list.size() != items) scores.clear();
  return scores;
}

}  // namespace

std::string PluginHello(const std::string& job, const Json& config) {
  return Line({{"sluice", 1}, {"job", job}, {"config", config}});
}

std::string PluginRequest(uint64_t id, absl::Duration deadline, const std::vector<Json>& items) {
  return Line({{"id", id}, {"deadline_ms", absl::ToInt64Milliseconds(deadline)}, {"items", items}});
}

PluginResult PluginResultOf(const Json& in) {
  if (!in.is_object()) return ErrorResult(absl::StrCat("its result is ", JsonExcerpt(in)));
  const auto error = in.find("error"), score = in.find("score");
  if (error != in.end() && !error->is_null()) {
    const std::string text = error->is_string() ? error->get<std::string>() : JsonExcerpt(*error);
    const auto retryable = in.find("retryable");
    return ErrorResult(
        text.empty() ? "an error without a text" : std::string(Utf8Prefix(text, kMaxError)),
        retryable != in.end() && *retryable == true);
  }
  PluginResult result;
  if (score == in.end() || score->is_null()) return result;
  if (!IsScore(*score)) {
    // JSON has no word for NaN and infinity, but servers may send them.
    return ErrorResult(
        absl::StrCat("its score is ",
                     score->is_number() ? absl::StrCat(score->get<double>()) : JsonExcerpt(*score),
                     ", a ", score->type_name(), "; wanted: a finite number"));
  }
  result.score = score->get<double>();
  if (const auto parts = in.find("parts"); parts != in.end() && parts->is_object()) {
    for (const auto& [name, part] : parts->items()) {
      if (result.parts.size() < kMaxParts && IsScore(part)) result.parts[name] = part.get<double>();
    }
  }
  if (const auto info = in.find("info"); info != in.end() && info->is_object()) {
    result.info = info->dump(-1, ' ', false, Json::error_handler_t::replace);
    if (result.info.size() > kMaxPluginInfo) result.info.clear();
  }
  return result;
}

absl::Status TooLargeForPlugin(size_t bytes) {
  return Error(absl::StatusCode::kInvalidArgument, "TOO_LARGE",
               absl::StrCat("the answers and their row need ", bytes,
                            " bytes for the plug-in; the limit is ", kMaxPluginLine));
}

absl::StatusOr<PluginDescription> ParsePluginDescription(absl::string_view line) {
  SLUICE_ASSIGN_OR_RETURN(const Json object, ParseObject(line));
  return PluginDescriptionOf(object);
}

absl::StatusOr<PluginDescription> PluginDescriptionOf(const Json& object) {
  const auto refuse = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("its description ", parts...));
  };
  PluginDescription description;
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string()) return refuse("has no text `name`");
  description.name = std::string(Utf8Prefix(name->get_ref<const std::string&>(), 200));

  if (const auto version = object.find("version"); version != object.end() && version->is_string())
    description.version = std::string(Utf8Prefix(version->get_ref<const std::string&>(), 200));
  if (const auto kind = object.find("granularity"); kind != object.end()) {
    if (*kind != "trajectory" && *kind != "group")
      return refuse("has the granularity ", JsonExcerpt(*kind), "; wanted: trajectory or group");
    description.scores_groups = *kind == "group";
  }
  if (const auto most = object.find("max_in_flight"); most != object.end()) {
    if (!most->is_number_unsigned() || *most > kMostInFlight)
      return refuse("has the max_in_flight ", JsonExcerpt(*most), "; wanted: 0 to ", kMostInFlight);
    description.max_in_flight = std::max(1u, most->get<uint32_t>());
  }
  const auto tests = object.find("self_test");
  if (tests == object.end()) return description;
  if (!tests->is_array()) return refuse("has a self_test that is no list");
  for (const Json& test : *tests) {
    const auto item = test.is_object() ? test.find("item") : test.end();
    const auto score = test.is_object() ? test.find("score") : test.end();
    if (item == test.end() || score == test.end())
      return refuse("has the self_test ", JsonExcerpt(test), "; wanted: {item, score}");
    PluginDescription::Test& read = description.self_test.emplace_back();
    if (item->is_array()) read.items.assign(item->begin(), item->end());
    else read.items = {*item};
    for (const Json& one : read.items) {
      if (!one.is_object())
        return refuse("has the self_test item ", JsonExcerpt(one), "; wanted: an object");
    }
    read.scores = ScoresOf(*score, read.items.size());
    if (read.scores.empty())
      return refuse("has the self_test score ", JsonExcerpt(*score), " for ", read.items.size(),
                    " items");
  }
  return description;
}

absl::StatusOr<PluginAnswer> ParsePluginAnswer(absl::string_view line) {
  SLUICE_ASSIGN_OR_RETURN(const Json object, ParseObject(line));
  const auto id = object.find("id"), results = object.find("results");
  if (id == object.end() || !id->is_number_unsigned())
    return absl::InvalidArgumentError(
        absl::StrCat("it wrote a line without the `id` of a call: ", JsonExcerpt(object)));
  PluginAnswer answer{.id = id->get<uint64_t>(), .results = {}};
  if (results == object.end() || !results->is_array())
    return absl::InvalidArgumentError(
        absl::StrCat("its answer to call ", answer.id, " has no list `results`"));
  for (const Json& result : *results) answer.results.push_back(PluginResultOf(result));
  return answer;
}

}  // namespace sluice
