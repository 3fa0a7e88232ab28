#include "services/trainer/demonstrations.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/prompt/answers.h"
#include "common/prompt/prompt.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace sluice::trainer {

absl::StatusOr<RowEncoder> MakeRowEncoder(const ModelDir& model, const JobConfig& config,
                                          absl::Span<const JobConfig::Source> sources) {
  std::vector<PromptRenderer::Source> rendered;
  for (const JobConfig::Source& source : sources)
    rendered.push_back({source.name, source.format, source.columns});
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const PromptRenderer> renderer,
                          PromptRenderer::Load(model, config.chat_template, std::move(rendered)));
  if (model.stop_ids.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.path,
        " names no end token, neither in generation_config.json nor in config.json; set "
        "eos_token_id"));
  }
  const int32_t end = model.stop_ids.front();
  int64_t limit = model.config.max_context;
  if (config.max_context > 0) limit = std::min(limit, config.max_context);

  const std::string kind = config.settings.kind == Settings::Kind::kDpo ? "dpo" : "sft";
  return RowEncoder([renderer, end, limit, kind](
                        absl::string_view source,
                        absl::string_view json) -> absl::StatusOr<std::vector<EncodedAnswer>> {
    SLUICE_ASSIGN_OR_RETURN(const RenderedPrompt prompt, renderer->Render(source, json));
    const nlohmann::json row =
        nlohmann::json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, AnswersOf(kind, row));

    std::vector<EncodedAnswer> encoded;
    bool fits = true;
    for (const std::string& text : texts) {
      SLUICE_ASSIGN_OR_RETURN(const std::vector<int32_t> answer,
                              renderer->tokenizer().Encode(text, {.add_special = false}));
      EncodedAnswer& to = encoded.emplace_back(EncodedAnswer{prompt.tokens, {}});
      to.mask.assign(to.tokens.size(), 0);
      to.tokens.insert(to.tokens.end(), answer.begin(), answer.end());
      to.tokens.push_back(end);
      to.mask.resize(to.tokens.size(), 1);
      fits = fits && static_cast<int64_t>(to.tokens.size()) <= limit;
    }
    // A pair of which one answer is too long says nothing, so neither is trained on.
    if (!fits) {
      for (EncodedAnswer& answer : encoded) answer.mask.assign(answer.mask.size(), 0);
    }
    return encoded;
  });
}

}  // namespace sluice::trainer
