#include "common/checkpoint/json.h"
#include "common/base/json_excerpt.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice {

using Json = nlohmann::ordered_json;

namespace {

// Checks JSON against the limits without building a value. It stops at the first problem.
class LimitChecker final : public nlohmann::json_sax<Json> {
 public:
  LimitChecker(int max_depth, const JsonLimits& limits) : max_depth_(max_depth), limits_(limits) {}
  const std::string& problem() const { return problem_; }

  bool null() override { return CountValue(); }
  bool boolean(bool) override { return CountValue(); }
  bool number_integer(number_integer_t) override { return CountValue(); }
  bool number_unsigned(number_unsigned_t) override { return CountValue(); }
  bool number_float(number_float_t, const string_t& text) override {
    if (limits_.exact_integers && text.find_first_of(".eE") == string_t::npos)
      return StopWith(absl::StrCat("the integer ", Printable(text), " is beyond 64 bits"));
    return CountValue();
  }
  bool string(string_t&) override { return CountValue(); }
  bool binary(binary_t&) override { return CountValue(); }
  bool start_object(size_t) override { return OpenContainer(); }
  bool start_array(size_t) override { return OpenContainer(); }
  bool end_object() override { return CloseContainer(); }
  bool end_array() override { return CloseContainer(); }

  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second)
      return StopWith(absl::StrCat("key \"", Printable(name), "\" occurs twice"));
    return keys_.back().size() <= limits_.members ||
           StopWith(absl::StrCat("an object has more than ", limits_.members, " members"));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // The message has the form "[json.exception.parse_error.101] parse error at line 1, column 3:
    // ..".
    const absl::string_view what = error.what();
    const size_t name = absl::StartsWith(what, "[") ? what.find("] ") : absl::string_view::npos;
    return StopWith(std::string(name == absl::string_view::npos ? what : what.substr(name + 2)));
  }

 private:
  bool StopWith(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool CountValue() {
    return ++values_ <= limits_.values ||
           StopWith(absl::StrCat("the text has more than ", limits_.values, " values"));
  }
  bool OpenContainer() {
    // keys_ has one entry per open container, so its size is the depth.
    if (static_cast<int>(keys_.size()) >= max_depth_)
      return StopWith(absl::StrCat("lists and objects are nested deeper than ", max_depth_));
    keys_.emplace_back();
    return CountValue();
  }
  bool CloseContainer() {
    keys_.pop_back();
    return true;
  }

  const int max_depth_;
  const JsonLimits limits_;
  // For each open object or array, its keys so far.
  std::vector<absl::flat_hash_set<std::string>> keys_;
  size_t values_ = 0;
  std::string problem_;
};

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view source, int max_depth,
                               const JsonLimits& limits) {
  // First check, then build. The library could do both in one pass with a callback, but that takes
  // quadratic time for a list of objects.
  LimitChecker checker(max_depth, limits);
  if (!Json::sax_parse(text.begin(), text.end(), &checker))
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", checker.problem()));
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const Json& value) {
  const Json list = value.is_array() ? value : Json::array({value});
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX)) {
      return absl::InvalidArgumentError(
          absl::StrCat(JsonExcerpt(id),
                       " is not a token id; wanted: an integer in [0, 2^31), or a list of them"));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string Printable(absl::string_view text) {
  return text.size() <= 80 ? absl::CHexEscape(text)
                           : absl::StrCat(absl::CHexEscape(text.substr(0, 80)), "..");
}

}  // namespace sluice
