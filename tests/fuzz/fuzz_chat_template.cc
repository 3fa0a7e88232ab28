// Fuzzes a chat template and its variables.
//
// Input: the template's source, a zero byte, the variables as JSON.
//
// Promises: nothing crashes; an error has one of three codes and names its place; the rendered text
// is UTF-8 within the limit and the same each time, and the spans of the mask lie within it.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/chat/chat_template.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {

using Json = nlohmann::ordered_json;

void CheckError(const absl::Status& status) {
  const bool known = absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
                     absl::IsResourceExhausted(status);
  SLUICE_CHECK_MSG(known, status.ToString());
  SLUICE_CHECK_MSG(absl::StartsWith(status.message(), "template:"), status.ToString());
}

void CheckRendered(const ChatTemplate::Rendered& rendered) {
  SLUICE_CHECK(rendered.text.size() <= 4 << 20);
  SLUICE_CHECK(IsUtf8(rendered.text));

  size_t reached = 0;
  for (const auto& [begin, end] : rendered.generated) {
    SLUICE_CHECK(begin <= end && end <= rendered.text.size());
    SLUICE_CHECK(IsUtf8(absl::string_view(rendered.text).substr(begin, end - begin)));
    reached = std::max(reached, end);
  }

  SLUICE_CHECK(reached <= rendered.text.size());
}

}  // namespace

void Run(absl::string_view input) {
  const size_t zero = input.find('\0');
  const absl::string_view json =
      zero == absl::string_view::npos ? absl::string_view() : input.substr(zero + 1);
  Json variables = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!variables.is_object()) variables = Json::object();
  const auto compiled = ChatTemplate::Compile(input.substr(0, zero));
  if (!compiled.ok()) return CheckError(compiled.status());
  ManualClock clock;  // Stands still, so that the result does not depend on the machine.
  const auto once = (*compiled)->RenderWithMask(variables, {.clock = &clock}),
             again = (*compiled)->RenderWithMask(variables, {.clock = &clock});
  SLUICE_CHECK(once.status() == again.status());
  if (!once.ok()) return CheckError(once.status());
  CheckRendered(*once);

  SLUICE_CHECK(once->text == again->text && once->generated == again->generated);
}

std::vector<std::string> Seeds() {
  constexpr absl::string_view kSources[] = {
      "{%- if tools %}\n{{- '<tools>' }}{% for t in tools %}{{ t | tojson(indent=2) }}{% endfor "
      "%}{% endif %}"
      "{% for m in messages %}{{ '<|' + m.role + '|>' + m['content'] | trim }}{% if not loop.last "
      "%}{{ '\\n' }}{% endif %}{% endfor %}",
      "{% set ns = namespace(last=-1, text='') %}{% for m in messages[::-1] if m.role != 'system' "
      "%}{% set ns.last = loop.index0 - 1 %}"
      "{% set ns.text = ns.text ~ m.content.split('</think>')[-1].lstrip('\\n') %}{% break %}{% "
      "else %}none{% endfor %}{{ ns.text }}{{ ns.last }}",
      "{% macro kind(v, d=1) -%}{% if v is mapping %}{% for k, w in v | dictsort %}{{ k }}:{{ "
      "kind(w, d=d + 1) }};{% endfor %}"
      "{% elif v is iterable and v is not string %}[{{ v | map('string') | join(', ') }}]{% else "
      "%}{{ v }}{% endif %}{%- endmacro %}{{ kind(messages[0]) }}",
      "{% macro box() %}<{{ caller(1, x='y') }}>{% endmacro %}{% call(a, x) box() %}{{ a }}{{ x "
      "}}{% endcall %}"
      "{% filter upper %}abc{% endfilter %}{% with q = 5 %}{{ q ** 2 // 3 % 4 }}{% endwith %}{% "
      "raw %}{{ x }}{% endraw %}{# note #}",
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>{% "
      "endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
      "{{ [3, 1, 2] | sort(reverse=true) | first }}{{ 'a b'.title().replace('A', 'é')[1:] }}{{ "
      "'%05.2f|%-4s' % (2.5, 'x') }}{{ '{:>4}{0!r}'.format(1) }}"
      "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | "
      "sum(attribute='n', start=1.5) | round(1) }}{{ {'k': (1,)} }}",
      "{{ raise_exception('no') if messages | length > 100 else strftime_now('%Y-%m-%d') }}{{ "
      "range(3) | batch(2, 0) | list }}{{ x is defined }}{{ 1 < 2 < 3 }}"
      "{{ loop is undefined or none }}{% set t %}a{{ 1 }}{% endset %}{{ t | indent(2, true) }}{{ "
      "dict(a=1).get('b', 'c') }}{{ joiner('|')() }}",
  };

  constexpr absl::string_view kVariables =
      R"({"messages": [{"role": "system", "content": " Be brief. ", "n": 1}, {"role": "user", )"
      R"("content": "héllo\n\u2028 wörld", "n": 2.5},)"
      R"( {"role": "assistant", "content": "<think>\nno\n</think>\n\nYes 😀", "n": 3}], )"
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": [1, null, )"
      R"(true, 1e20]}}}]})";
  std::vector<std::string> seeds;
  for (const absl::string_view source : kSources)
    seeds.push_back(absl::StrCat(source, absl::string_view("\0", 1), kVariables));

  return seeds;
}

}  // namespace sluice::fuzz
