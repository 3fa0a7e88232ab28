#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// The content of a tokenizer.json. Its two long lists are separate from the rest, so that 200
// thousand tokens never become JSON values.
struct TokenizerFile {
  TokenizerFile();
  TokenizerFile(TokenizerFile&&) noexcept;
  ~TokenizerFile();

  // An object, in which `vocab` and `merges` of `model` are null.
  std::unique_ptr<nlohmann::json> rest;
  std::vector<std::pair<std::string, int32_t>> vocab;       // In the order of the file.
  std::vector<std::pair<std::string, std::string>> merges;  // By rank.
  bool has_vocab = false, has_merges = false;

  static constexpr size_t kMaxBytes = 64 << 20, kMaxDepth = 64, kMaxValues = 2'000'000;
  static constexpr int32_t kMaxId = (1 << 21) - 1;

  // INVALID_ARGUMENT: the text is not JSON, has a key twice in one object, an id or a merge of a
  // wrong form, or exceeds a limit above.
  static absl::StatusOr<TokenizerFile> Parse(absl::string_view json);
};

}  // namespace sluice
