#include "services/trainer/demonstrations.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/prompt/prompt.h"
#include "common/tokenizer/tokenizer.h"
#include "common/verifiers/args.h"
#include "nlohmann/json.hpp"

namespace sluice::trainer {

absl::StatusOr<RowEncoder> MakeRowEncoder(const ModelDir& model, const JobConfig& config) {
  std::vector<PromptRenderer::Source> sources;
  for (const JobConfig::Source& source : config.sources)
    sources.push_back({source.name, source.format, source.columns});
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const PromptRenderer> renderer,
                          PromptRenderer::Load(model, config.chat_template, std::move(sources)));
  if (model.stop_ids.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.path,
        " names no end token, neither in generation_config.json nor in config.json; set "
        "eos_token_id"));
  }
  const int32_t end = model.stop_ids.front();
  int64_t limit = model.config.max_context;
  if (config.max_context > 0) limit = std::min(limit, config.max_context);

  return RowEncoder([renderer, end, limit](absl::string_view source,
                                           absl::string_view json) -> absl::StatusOr<EncodedRow> {
    SLUICE_ASSIGN_OR_RETURN(RenderedPrompt prompt, renderer->Render(source, json));
    const nlohmann::json row =
        nlohmann::json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
    SLUICE_ASSIGN_OR_RETURN(const std::string text, GoldOf(row));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<int32_t> answer,
                            renderer->tokenizer().Encode(text, {.add_special = false}));
    EncodedRow encoded{std::move(prompt.tokens), {}};
    encoded.mask.assign(encoded.tokens.size(), 0);
    encoded.tokens.insert(encoded.tokens.end(), answer.begin(), answer.end());
    encoded.tokens.push_back(end);
    encoded.mask.resize(encoded.tokens.size(),
                        static_cast<int64_t>(encoded.tokens.size()) <= limit ? 1 : 0);
    return encoded;
  });
}

}  // namespace sluice::trainer
