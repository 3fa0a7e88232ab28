#include "tools/sluice/scrub.h"

#include <re2/re2.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLeastSecret = 6;  // Shorter values stand in too many places by chance.
constexpr char kSecretWords[] =
    "password|passwd|passphrase|secret|token|api_?key|access_?key|private_?key|credential|"
    "authorization|auth|requirepass|masterauth";

void Replace(const char* pattern, const char* with, std::string* text) {
  RE2::GlobalReplace(text, RE2(pattern), with);
}

}  // namespace

bool IsSecretName(absl::string_view name) {
  static const RE2* const secret =
      new RE2(absl::StrCat("(?:^|[_.\\-/])(?:", kSecretWords, "|key|pass)s?(?:$|[_.\\-/])"));
  // Counts of tokens are no secrets.
  static const RE2* const count = new RE2("tokens(?:_|$)|_tokens|max_token");
  const std::string lower = absl::AsciiStrToLower(name);
  return RE2::PartialMatch(lower, *secret) && !RE2::PartialMatch(lower, *count);
}

Scrubber::Scrubber(const std::map<std::string, std::string>& environment) {
  for (const auto& [name, value] : environment) {
    if (IsSecretName(name) && value.size() >= kLeastSecret) secrets_[value] = name;
  }
}

std::string Scrubber::ScrubSecrets(absl::string_view text) const {
  std::string out(text);
  for (const auto& [value, name] : secrets_)
    out = absl::StrReplaceAll(out, {{value, absl::StrCat("[removed: value of ", name, "]")}});

  Replace("(?s)-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|$)", "[removed: PEM]", &out);
  Replace("://[^/@\\s\"]+@", "://[removed]@", &out);
  Replace("(?i)\\b(bearer|basic)\\s+[A-Za-z0-9._~+/=\\-]{6,}", "\\1 [removed]", &out);
  Replace("\\b(sk|pk|hf|ghp|xox[a-z])[-_][A-Za-z0-9_\\-]{8,}", "[removed: key]", &out);
  static const std::string* const value =
      new std::string(absl::StrCat("(?i)\\b([a-z0-9_.\\-]*(?:", kSecretWords,
                                   "))(\\\\?[\"']?\\s*[:= ]\\s*)(\\\\?[\"'])?"
                                   "([^\\s\"',;}\\[\\]\\\\]{6,})"));
  Replace(value->c_str(), "\\1\\2\\3[removed]", &out);
  return out;
}

std::string Scrubber::ScrubText(absl::string_view text) const {
  std::string out = ScrubSecrets(text);
  static const std::string* const quoted =
      new std::string(absl::StrCat("\"[^\"\\n]{", kMostQuoted + 1, ",}(?:\"|$)"));
  Replace(quoted->c_str(), "\"[removed: a long quotation]\"", &out);
  return out;
}

Json Scrubber::ScrubJson(const Json& json) const {
  if (json.is_string()) return ScrubText(json.get_ref<const std::string&>());
  if (json.is_array()) {
    Json out = Json::array();
    for (const Json& value : json) out.push_back(ScrubJson(value));
    return out;
  }
  if (!json.is_object()) return json;
  Json out = Json::object();
  for (const auto& [key, value] : json.items()) {
    const bool secret = IsSecretName(key) && value.is_string() && !value.get<std::string>().empty();
    out[key] = secret ? Json("[removed]") : ScrubJson(value);
  }
  return out;
}

std::string Scrubber::ScrubLines(absl::string_view lines) const {
  std::string out;
  std::string plain;  // Lines that are no JSON, so that a PEM block stays together.
  const auto flush = [&] {
    out += ScrubText(plain);
    plain.clear();
  };
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      absl::StrAppend(&plain, line, "\n");
      continue;
    }
    flush();
    absl::StrAppend(&out, ScrubJson(json).dump(-1, ' ', false, Json::error_handler_t::replace),
                    "\n");
  }
  flush();
  return out;
}

}  // namespace sluice::cli
