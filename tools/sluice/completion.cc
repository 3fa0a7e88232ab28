#include "tools/sluice/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/error_catalogue.h"
#include "common/rpc/client.h"
#include "sluice/admin/v1/admin.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/context.h"
#include "tools/sluice/doctor/doctor.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kAnswerTime = absl::Seconds(1);

constexpr char kBash[] = R"(# Completion of sluice in bash:  source <(sluice completion bash)
_sluice() {
  local IFS=$'\n'
  COMPREPLY=($("${COMP_WORDS[0]}" __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _sluice sluice
)";

constexpr char kZsh[] = R"(#compdef sluice
# Completion of sluice in zsh:  source <(sluice completion zsh)
_sluice() {
  local -a lines found
  local line
  lines=("${(@f)$("${words[1]}" __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  for line in "${lines[@]}"; do
    [[ -n $line ]] && found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
  done
  if (( ${#found} )); then _describe sluice found; else _files; fi
}
compdef _sluice sluice
# As a file of fpath, its body is the function, and this is its first call.
if [[ ${funcstack[1]} == _sluice ]]; then _sluice; fi
)";

constexpr char kFish[] = R"(# Completion of sluice in fish:  sluice completion fish | source
function __sluice_complete
  set -l words (commandline -opc) (commandline -ct)
  $words[1] __complete fish $words[2..-1] 2>/dev/null
end
complete -c sluice -e
complete -c sluice -n 'test (count (__sluice_complete)) -gt 0' -f -a '(__sluice_complete)'
)";

// The values of an option's IsMember(), which stand in its type as in TEXT:{json,table}.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.find('}');
  if (open == type.npos || close == type.npos || close < open) return {};
  return absl::StrSplit(type.substr(open + 1, close - open - 1), ',', absl::SkipEmpty());
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

const CLI::Option* FindOption(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  return app.get_option_no_throw(name);
}

// The positional argument number `index`; the last one may take all further words.
const CLI::Option* FindPositional(const CLI::App& app, size_t index) {
  std::vector<const CLI::Option*> positionals;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) positionals.push_back(option);
  }
  if (index < positionals.size()) return positionals[index];
  const bool repeats = !positionals.empty() && positionals.back()->get_items_expected_max() > 1;
  return repeats ? positionals.back() : nullptr;
}

const CLI::App* FindSubcommand(const CLI::App& app, const std::string& word) {
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_name() == word) return sub;
  }
  return nullptr;
}

// Where the unfinished word stands.
struct Place {
  const CLI::App* app = nullptr;
  const CLI::Option* value_of = nullptr;  // The option whose value it is; null: none.
  size_t positionals = 0;                 // That come before it.
};

Place FindPlace(const CLI::App& parser, absl::Span<const std::string> before) {
  Place place{.app = &parser};
  for (const std::string& word : before) {
    if (place.value_of != nullptr) {
      place.value_of = nullptr;
    } else if (absl::StartsWith(word, "-")) {
      const CLI::Option* const option = FindOption(*place.app, word);
      if (option != nullptr && TakesValue(*option) && !absl::StrContains(word, '='))
        place.value_of = option;
    } else if (const CLI::App* const sub = FindSubcommand(*place.app, word)) {
      place = {.app = sub};
    } else {
      ++place.positionals;
    }
  }
  return place;
}

void AddOptions(const CLI::App& app, std::vector<Candidate>* candidates) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      candidates->push_back({absl::StrCat("--", name), option->get_description()});
    if (!option->get_lnames().empty()) continue;
    for (const std::string& name : option->get_snames())
      candidates->push_back({absl::StrCat("-", name), option->get_description()});
  }
}

void AddValues(const CLI::Option& option, const std::string& what,
               absl::Span<const std::string> words, const FindNames& find_names,
               std::vector<Candidate>* candidates) {
  for (const std::string& choice : ChoicesOf(option)) candidates->push_back({choice, ""});
  if (!candidates->empty()) return;
  for (const std::string& name : find_names(what, words)) candidates->push_back({name, ""});
}

}  // namespace

std::vector<Candidate> CompleteWords(const CLI::App& parser, absl::Span<const std::string> words,
                                     const FindNames& find_names) {
  if (words.empty()) return {};
  const std::string& unfinished = words.back();
  const Place place = FindPlace(parser, words.subspan(0, words.size() - 1));

  std::vector<Candidate> candidates;
  if (place.value_of != nullptr) {
    AddValues(*place.value_of, place.value_of->get_name(), words, find_names, &candidates);
  } else if (absl::StartsWith(unfinished, "-")) {
    AddOptions(*place.app, &candidates);
  } else {
    for (const CLI::App* sub : place.app->get_subcommands([](const CLI::App*) { return true; })) {
      if (!sub->get_group().empty())
        candidates.push_back({sub->get_name(), sub->get_description()});
    }
    const CLI::Option* const positional = FindPositional(*place.app, place.positionals);
    if (candidates.empty() && positional != nullptr)
      AddValues(*positional, positional->get_name(true), words, find_names, &candidates);
  }

  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [&](const Candidate& candidate) {
                                    return !absl::StartsWith(candidate.word, unfinished);
                                  }),
                   candidates.end());
  return candidates;
}

namespace {

// The value of `option` among the words, as in "--server H:P" or "--server=H:P".
std::string ValueAmong(absl::Span<const std::string> words, absl::string_view option) {
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view rest = words[i];
    if (!absl::ConsumePrefix(&rest, option)) continue;
    if (absl::ConsumePrefix(&rest, "=")) return std::string(rest);
    if (rest.empty() && i + 1 < words.size()) return words[i + 1];
  }
  return "";
}

template <typename Response>
bool Ask(absl::Span<const std::string> words, const google::protobuf::Message& request,
         Response* response) {
  ContextFlag() = ValueAmong(words, "--context");
  const auto channel = ConnectToController(ValueAmong(words, "--server"));
  return channel.ok() &&
         rpc::Call(**channel, request, response, {.deadline = kAnswerTime, .give_up = kAnswerTime})
             .ok();
}

}  // namespace

std::vector<std::string> FindNamesOf(const std::string& what, absl::Span<const std::string> words) {
  std::set<std::string> names;
  if (what == "JOB" || what == "MODEL" || what == "JOB_OR_DATA_DIR") {
    job::v1::ListResponse response;
    if (Ask(words, job::v1::ListRequest(), &response)) {
      for (const job::v1::JobStatus& job : response.jobs()) names.insert(job.name());
    }
  } else if (what == "DAEMON" || what == "--daemon") {
    admin::v1::DaemonsResponse response;
    if (Ask(words, admin::v1::DaemonsRequest(), &response)) {
      for (const admin::v1::Daemon& daemon : response.daemons()) names.insert(daemon.daemon());
    }
  } else if (what == "--context" || what == "CONTEXT") {
    const absl::StatusOr<Contexts> contexts = ReadContexts(ContextsPath());
    if (contexts.ok()) {
      for (const auto& [name, context] : contexts->all) names.insert(name);
    }
  } else if (what == "CODE") {
    for (const CatalogueRow& row : ErrorCatalogue()) names.insert(row.code);
  } else if (what == "CHECK") {
    for (const DoctorCheck& check : DoctorChecks()) {
      names.insert(check.group);
      names.insert(absl::StrCat(check.group, ".", check.name));
    }
  }
  return {names.begin(), names.end()};
}

std::string CompletionScript(const std::string& shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  return shell == "fish" ? kFish : "";
}

void PrintCandidates(const std::string& shell, absl::Span<const Candidate> candidates) {
  for (const Candidate& candidate : candidates) {
    std::string help = candidate.help.substr(0, candidate.help.find_first_of(".\n"));
    if (shell == "bash") std::printf("%s\n", candidate.word.c_str());
    else std::printf("%s\t%s\n", candidate.word.c_str(), help.c_str());
  }
}

}  // namespace sluice::cli
