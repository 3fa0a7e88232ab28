#include "common/chat/chat_template.h"

#include <memory_resource>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/chat/interpreter.h"
#include "common/chat/json.h"
#include "common/chat/lexer.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

absl::Status ToStatus(const chat::Failure& failure, absl::string_view source) {
  return absl::Status(failure.code, absl::StrCat("template:", chat::PlaceOf(source, failure.at),
                                                 ": ", failure.what));
}

}  // namespace

struct ChatTemplate::Compiled {
  chat::Program program;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Compiled> compiled)
    : compiled_(std::move(compiled)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(absl::string_view source) {
  if (source.size() > chat::kMaxSourceBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("template:1:1: the source has ", source.size(),
                                                     " bytes, more than ", chat::kMaxSourceBytes));
  }
  if (!IsUtf8(source)) return absl::InvalidArgumentError("template:1:1: the source is not UTF-8");
  const std::string normalized = chat::NormalizeSource(source);
  try {
    auto compiled = std::make_unique<Compiled>();
    compiled->program = chat::Parse(normalized);
    return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(compiled)));
  } catch (const chat::Failure& failure) {
    return ToStatus(failure, normalized);
  }
}

absl::StatusOr<ChatTemplate::Rendered> ChatTemplate::RenderWithMask(
    const nlohmann::ordered_json& variables, const Options& options) const {
  if (!variables.is_object())
    return absl::InvalidArgumentError(absl::StrCat("the variables of a template are a ",
                                                   variables.type_name(), "; wanted: an object"));
  const chat::Program& program = compiled_->program;

  char first[16 << 10];  // Large enough for most conversations.
  std::pmr::monotonic_buffer_resource arena(first, sizeof(first));
  chat::Meter meter(options.clock != nullptr ? options.clock : chat::ThreadCpuClock());
  chat::Interpreter interpreter(program, &meter, options.now);
  try {
    for (const auto& [symbol, function] : program.globals) {
      if (function->name == "strftime_now" && options.now == absl::InfinitePast()) continue;
      interpreter.Define(symbol, chat::Value::Of(function));
    }
    for (const auto& [name, value] : variables.get_ref<const nlohmann::ordered_json::object_t&>()) {
      const auto found = absl::c_find(program.symbols, name);
      if (found != program.symbols.end())
        interpreter.Define(static_cast<chat::Symbol>(found - program.symbols.begin()),
                           chat::FromJson(meter, value, &arena));
    }
    interpreter.Run();
    return Rendered{interpreter.TakeOutput(), interpreter.generated()};
  } catch (const chat::Failure& failure) {
    return ToStatus(failure, program.source);
  }
}

absl::StatusOr<std::string> ChatTemplate::Render(const nlohmann::ordered_json& variables,
                                                 const Options& options) const {
  SLUICE_ASSIGN_OR_RETURN(Rendered rendered, RenderWithMask(variables, options));
  return std::move(rendered.text);
}

absl::StatusOr<std::string> ChatTemplate::Render(const nlohmann::ordered_json& variables) const {
  return Render(variables, Options());
}

}  // namespace sluice
