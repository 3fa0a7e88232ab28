// Fuzzes the verifier json_schema.
//
// Input: the schema, a zero byte, the answer.
//
// Promises: nothing crashes; a schema is refused with INVALID_ARGUMENT, or it gives each answer a
// verdict with the score 0 or 1, the same one each time; the same schema as a field of the row
// gives the same verdict; an answer that the schema {} refuses, no other schema accepts.
#include "absl/strings/str_cat.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/verifiers/json_schema.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {

using nlohmann::json;

// Job files and data sets refuse what nests deeper.
constexpr size_t kMaxDepth = 64;

Verdict ScoreTwice(const Verifier& verifier, const std::string& text, const json& row) {
  const absl::StatusOr<Verdict> verdict = verifier.Score({.text = text}, row);
  SLUICE_CHECK_MSG(verdict.ok(), verdict.status().ToString());
  SLUICE_CHECK(verdict->score == 0 || verdict->score == 1);
  SLUICE_CHECK(!verdict->reason.empty() && verdict->kind == Verdict::Kind::kScore);
  const absl::StatusOr<Verdict> again = verifier.Score({.text = text}, row);
  SLUICE_CHECK(again.ok() && again->score == verdict->score && again->reason == verdict->reason);
  return *verdict;
}

}  // namespace

void Run(absl::string_view input) {
  const size_t zero = input.find('\0');
  const absl::string_view text = input.substr(0, zero);
  const std::string answer(zero == absl::string_view::npos ? "" : input.substr(zero + 1));
  if (JsonDepth(text) > kMaxDepth) return;
  const json schema = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) return;

  static const Verifier& any = *MakeJsonSchema({{"schema", json::object()}})->release();
  const Verdict as_json = ScoreTwice(any, answer, json::object());

  static const Verifier& of_row = *MakeJsonSchema(json::object())->release();
  const json row = {{"schema", schema}};
  const absl::StatusOr<std::unique_ptr<Verifier>> verifier = MakeJsonSchema(row);
  if (!verifier.ok()) {
    SLUICE_CHECK_MSG(absl::IsInvalidArgument(verifier.status()), verifier.status().ToString());
    SLUICE_CHECK(absl::IsInvalidArgument(of_row.CheckRow(row)));
    return;
  }
  const Verdict verdict = ScoreTwice(**verifier, answer, json::object());
  SLUICE_CHECK(verdict.score <= as_json.score);
  SLUICE_CHECK(of_row.CheckRow(row).ok());
  SLUICE_CHECK(ScoreTwice(of_row, answer, row).reason == verdict.reason);
}

std::vector<std::string> Seeds() {
  struct Seed {
    absl::string_view schema, answer;
  };
  constexpr Seed kSeeds[] = {
      {R"({"type":"object","properties":{"n":{"type":"integer","minimum":0}},"required":["n"]})",
       "```json\n{\"n\": 3}\n```"},
      {R"({"type":"array","items":{"enum":[1,"a",null]},"uniqueItems":true,"maxItems":3})",
       R"(<answer>[1,"a",null]</answer>)"},
      {R"({"$defs":{"t":{"type":"array","items":{"$ref":"#/$defs/t"}}},"$ref":"#/$defs/t"})",
       "[[[]],[]]"},
      {R"({"anyOf":[{"type":"number","multipleOf":0.1},{"type":"string","pattern":"^a+$"}]})",
       R"("aaa")"},
      {R"({"allOf":[{"not":{"const":7}},{"exclusiveMaximum":1e308}],"oneOf":[{},false]})", "-1e9"},
      {R"({"prefixItems":[{"minLength":2,"maxLength":2}],"items":false,"minItems":1})",
       "[\"\xc3\xa9\xf0\x9f\x98\x80\"]"},
      {R"({"additionalProperties":{"type":["boolean","null"]},"minProperties":1})",
       R"({"a":true,"b":null})"},
      {"true", R"({"a":1,"a":2})"},
  };
  std::vector<std::string> seeds;
  for (const Seed& seed : kSeeds)
    seeds.push_back(absl::StrCat(seed.schema, absl::string_view("\0", 1), seed.answer));
  return seeds;
}

}  // namespace sluice::fuzz
