#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/splitmix.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// Which tasks a generator makes. Task i depends only on the seed, on i and on its level, which is
// levels[i % levels.size()]; it is the same on every machine.
struct GeneratorSpec {
  static constexpr uint64_t kMaxRows = 1'000'000;

  std::string kind;
  uint64_t rows = 10'000;
  std::vector<uint32_t> levels = {1};
  uint64_t seed = 1;
};

struct GeneratorRow {
  absl::string_view name;
  absl::string_view doc;  // One line.
  uint32_t max_level;     // Levels count from 1; a higher one is harder.
  // The columns of a row. `solution`, an answer that has the full score, is no field of a row
  // unless a field is mapped to it.
  std::vector<std::string> columns;
  // Makes a task of this level, which is in [1, max_level]: an object with all columns but `level`.
  nlohmann::json (*make)(uint32_t level, SplitMix64* random);
};

// The generators of this build.
const std::vector<GeneratorRow>& Generators();

// INVALID_ARGUMENT: there is no such kind, or `rows` or a level is out of range; the message begins
// with the name of the value.
absl::Status CheckGenerator(const GeneratorSpec& spec);

// Task `index` as an object of columns. CheckGenerator() accepts the spec.
nlohmann::json GenerateRow(const GeneratorSpec& spec, uint64_t index);

// The form in which a generator takes the place of a path:
// generator:countdown?rows=1000&levels=1,2&seed=7. What is left out has its default.
std::string GeneratorText(const GeneratorSpec& spec);
bool IsGeneratorText(absl::string_view path);
// INVALID_ARGUMENT: the text is malformed, or as CheckGenerator().
absl::StatusOr<GeneratorSpec> ParseGenerator(absl::string_view path);

}  // namespace sluice
