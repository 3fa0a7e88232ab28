#include "common/data/generator.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/data/generators/make.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

constexpr absl::string_view kPrefix = "generator:";
constexpr size_t kMaxLevels = 64;

const GeneratorRow* FindGenerator(absl::string_view kind) {
  for (const GeneratorRow& row : Generators()) {
    if (row.name == kind) return &row;
  }
  return nullptr;
}

absl::Status SetParameter(absl::string_view name, absl::string_view value, GeneratorSpec* spec) {
  bool good = false;
  if (name == "rows") {
    good = absl::SimpleAtoi(value, &spec->rows);
  } else if (name == "seed") {
    good = absl::SimpleAtoi(value, &spec->seed);
  } else if (name == "levels") {
    spec->levels.clear();
    good = true;
    for (const absl::string_view part : absl::StrSplit(value, ','))
      good &= absl::SimpleAtoi(part, &spec->levels.emplace_back());
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is no value of a generator; it has rows, levels and seed"));
  }
  return good ? absl::OkStatus()
              : absl::InvalidArgumentError(
                    absl::StrCat(name, " is \"", value, "\", wanted: whole numbers from 0"));
}

}  // namespace

const std::vector<GeneratorRow>& Generators() {
  static const auto* const rows = new std::vector<GeneratorRow>{
      {"arithmetic",
       "a sum, a difference or, from level 3 on, a product of two numbers, whose digits are as "
       "many as the level; the verifiers exact and math score it",
       9,
       {"problem", "prompt", "answer"},
       MakeArithmetic},
      {"chain_sum",
       "a chain of sums and differences; the level is the number of its operators, and from level "
       "5 on its numbers have up to two digits; the verifiers exact and math score it",
       20,
       {"problem", "prompt", "answer"},
       MakeChainSum},
      {"countdown",
       "an expression that makes a number from given ones, one more than the level; from level 2 "
       "on with products and quotients, and from level 3 on from numbers of up to two digits; the "
       "verifier countdown scores it",
       8,
       {"problem", "prompt", "answer", "numbers"},
       MakeCountdownTask},
      {"sort",
       "numbers to be sorted, two more than the level, and from level 4 on of up to two digits; "
       "the verifier exact scores it",
       20,
       {"problem", "prompt", "answer"},
       MakeSort},
  };
  return *rows;
}

absl::Status CheckGenerator(const GeneratorSpec& spec) {
  const GeneratorRow* const row = FindGenerator(spec.kind);
  if (row == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kind is \"", spec.kind,
        "\", wanted: ", absl::StrJoin(Generators(), ", ", [](std::string* out, const auto& known) {
          absl::StrAppend(out, known.name);
        })));
  }
  if (spec.rows == 0 || spec.rows > GeneratorSpec::kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows is ", spec.rows, ", wanted: 1 to ", GeneratorSpec::kMaxRows));
  }
  if (spec.levels.empty() || spec.levels.size() > kMaxLevels) {
    return absl::InvalidArgumentError(
        absl::StrCat("levels has ", spec.levels.size(), " elements, wanted: 1 to ", kMaxLevels));
  }
  for (const uint32_t level : spec.levels) {
    if (level >= 1 && level <= row->max_level) continue;
    return absl::InvalidArgumentError(absl::StrCat("levels has ", level, ", wanted: levels of ",
                                                   spec.kind, ", which are 1 to ", row->max_level));
  }
  return absl::OkStatus();
}

nlohmann::json GenerateRow(const GeneratorSpec& spec, uint64_t index) {
  const GeneratorRow* const row = FindGenerator(spec.kind);
  SLUICE_CHECK(row != nullptr);
  const uint32_t level = spec.levels[index % spec.levels.size()];
  SplitMix64 random(GroupSeed(GroupSeed(spec.seed, index), level));
  nlohmann::json made = row->make(level, &random);
  made["level"] = level;
  return made;
}

std::string GeneratorText(const GeneratorSpec& spec) {
  return absl::StrCat(kPrefix, spec.kind, "?rows=", spec.rows,
                      "&levels=", absl::StrJoin(spec.levels, ","), "&seed=", spec.seed);
}

bool IsGeneratorText(absl::string_view path) { return absl::StartsWith(path, kPrefix); }

absl::StatusOr<GeneratorSpec> ParseGenerator(absl::string_view path) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(absl::StripPrefix(path, kPrefix), absl::MaxSplits('?', 1));
  GeneratorSpec spec;
  spec.kind = std::string(halves.first);
  for (const absl::string_view parameter : absl::StrSplit(halves.second, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(parameter, absl::MaxSplits('=', 1));
    SLUICE_RETURN_IF_ERROR(Annotate(SetParameter(parts.first, parts.second, &spec), path));
  }
  SLUICE_RETURN_IF_ERROR(Annotate(CheckGenerator(spec), path));
  return spec;
}

}  // namespace sluice
