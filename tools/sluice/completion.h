#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace CLI {
class App;
}

// Completion of command lines in a shell. The scripts that `sluice completion SHELL` prints call
// `sluice __complete SHELL WORD..` at each Tab, so they never grow old.
namespace sluice::cli {

// The hidden command: `sluice __complete SHELL WORD..`, where the last word is the unfinished one.
inline constexpr char kCompleteCommand[] = "__complete";

struct Candidate {
  std::string word;
  std::string help;  // May be empty.
};

// Names that only a file or the controller knows: `what` is the name of the argument in the help,
// such as JOB or --context. Returns an empty list for any other argument.
using FindNames =
    std::function<std::vector<std::string>(const std::string& what, absl::Span<const std::string>)>;

// What may stand in place of the last of `words`, which are those after the program's name. Empty:
// nothing is known, so the shell offers files.
std::vector<Candidate> CompleteWords(const CLI::App& parser, absl::Span<const std::string> words,
                                     const FindNames& find_names);

// The names of jobs and daemons, which the controller is asked for within a second; of contexts;
// and of errors and checks. `words` may name the controller (--server, --context).
std::vector<std::string> FindNamesOf(const std::string& what, absl::Span<const std::string> words);

// The script for bash, zsh or fish; an empty text for another shell.
std::string CompletionScript(const std::string& shell);

// Prints the candidates, one per line. For zsh and fish a tab and the help follow the word.
void PrintCandidates(const std::string& shell, absl::Span<const Candidate> candidates);

}  // namespace sluice::cli
