#pragma once

#include "absl/strings/string_view.h"

namespace sluice::math {

enum class CommandAction {
  kIgnore,              // \left, \displaystyle
  kIgnoreWithArgument,  // \pmod{..}
  kSpace,               // \quad
  kOperator,            // the operator of CommandRow::text
  kSymbol,              // a letter or constant
  kFunction,            // \sin
  kCommand,             // \frac, \sqrt: the parser reads its arguments
  kWords,               // \text{..}
  kDecorated,           // \overline{..}: a symbol of its own
  kEnvironment,         // \begin{..}, \end{..}
};

struct CommandRow {
  absl::string_view name;
  CommandAction action = CommandAction::kSymbol;
  absl::string_view text;
};

// What the LaTeX command \name means. An unknown one is a symbol of its own name.
CommandRow FindCommand(absl::string_view name);

// Whether the word, in lower case, is a function such as sin, ln or gcd.
bool IsFunctionName(absl::string_view name);

// The name of the constant that the word stands for (pi, infinity), or "".
absl::string_view FindConstantWord(absl::string_view word);

}  // namespace sluice::math
