#include "common/verifiers/math/commands.h"

#include "absl/container/flat_hash_map.h"

namespace sluice::math {
namespace {

constexpr auto kIgnored = CommandAction::kIgnore;
constexpr auto kOp = CommandAction::kOperator;
constexpr auto kSym = CommandAction::kSymbol;
constexpr auto kCmd = CommandAction::kCommand;
constexpr auto kDeco = CommandAction::kDecorated;

constexpr CommandRow kCommands[] = {
    {"left", kIgnored, ""},
    {"right", kIgnored, ""},
    {"big", kIgnored, ""},
    {"Big", kIgnored, ""},
    {"bigl", kIgnored, ""},
    {"bigr", kIgnored, ""},
    {"Bigl", kIgnored, ""},
    {"Bigr", kIgnored, ""},
    {"bigg", kIgnored, ""},
    {"Bigg", kIgnored, ""},
    {"displaystyle", kIgnored, ""},
    {"textstyle", kIgnored, ""},
    {"limits", kIgnored, ""},
    {"boxed", kIgnored, ""},
    {"fbox", kIgnored, ""},
    {"it", kIgnored, ""},
    {"rm", kIgnored, ""},
    {"bf", kIgnored, ""},
    {"nonumber", kIgnored, ""},
    {"pmod", CommandAction::kIgnoreWithArgument, ""},
    {"phantom", CommandAction::kIgnoreWithArgument, ""},
    {"hspace", CommandAction::kIgnoreWithArgument, ""},
    {"label", CommandAction::kIgnoreWithArgument, ""},
    {"quad", CommandAction::kSpace, ""},
    {"qquad", CommandAction::kSpace, ""},
    {"cdot", kOp, "*"},
    {"times", kOp, "*"},
    {"ast", kOp, "*"},
    {"div", kOp, "/"},
    {"le", kOp, "<="},
    {"leq", kOp, "<="},
    {"leqslant", kOp, "<="},
    {"ge", kOp, ">="},
    {"geq", kOp, ">="},
    {"geqslant", kOp, ">="},
    {"lt", kOp, "<"},
    {"gt", kOp, ">"},
    {"ne", kOp, "!="},
    {"neq", kOp, "!="},
    {"approx", kOp, "~"},
    {"simeq", kOp, "~"},
    {"in", kOp, "in"},
    {"to", kOp, "->"},
    {"rightarrow", kOp, "->"},
    {"pm", kOp, "+-"},
    {"mp", kOp, "-+"},
    {"cup", kOp, "cup"},
    {"cap", kOp, "cap"},
    {"setminus", kOp, "setminus"},
    {"backslash", kOp, "setminus"},
    {"colon", kOp, ":"},
    {"lbrace", kOp, "\\{"},
    {"rbrace", kOp, "\\}"},
    {"langle", kOp, "("},
    {"rangle", kOp, ")"},
    {"lbrack", kOp, "["},
    {"rbrack", kOp, "]"},
    {"vert", kOp, "|"},
    {"lvert", kOp, "|"},
    {"rvert", kOp, "|"},
    {"mid", kOp, "|"},
    {"circ", kOp, "deg"},
    {"degree", kOp, "deg"},
    {"degrees", kOp, "deg"},
    {"prime", kOp, "'"},
    {"bmod", kOp, "mod"},
    {"mod", kOp, "mod"},
    {"land", kOp, "and"},
    {"lor", kOp, "and"},
    {"infty", kSym, "infinity"},
    {"emptyset", kCmd, "emptyset"},
    {"varnothing", kCmd, "emptyset"},
    {"frac", kCmd, "frac"},
    {"dfrac", kCmd, "frac"},
    {"tfrac", kCmd, "frac"},
    {"cfrac", kCmd, "frac"},
    {"sqrt", kCmd, "sqrt"},
    {"surd", kCmd, "surd"},
    {"binom", kCmd, "binom"},
    {"dbinom", kCmd, "binom"},
    {"tbinom", kCmd, "binom"},
    {"sum", kCmd, "sum"},
    {"prod", kCmd, "prod"},
    {"int", kCmd, "int"},
    {"lim", kCmd, "lim"},
    {"lfloor", kCmd, "lfloor"},
    {"rfloor", kOp, "rfloor"},
    {"lceil", kCmd, "lceil"},
    {"rceil", kOp, "rceil"},
    {"begin", CommandAction::kEnvironment, "begin"},
    {"end", CommandAction::kEnvironment, "end"},
    {"text", CommandAction::kWords, ""},
    {"textbf", CommandAction::kWords, ""},
    {"textit", CommandAction::kWords, ""},
    {"textrm", CommandAction::kWords, ""},
    {"textnormal", CommandAction::kWords, ""},
    {"mbox", CommandAction::kWords, ""},
    {"hbox", CommandAction::kWords, ""},
    {"mathrm", CommandAction::kWords, ""},
    {"mathit", CommandAction::kWords, ""},
    {"operatorname", CommandAction::kWords, ""},
    {"mathbf", kDeco, "bold"},
    {"boldsymbol", kDeco, "bold"},
    {"bm", kDeco, "bold"},
    {"mathbb", kDeco, "mathbb"},
    {"mathcal", kDeco, "mathcal"},
    {"mathscr", kDeco, "mathcal"},
    {"mathfrak", kDeco, "mathfrak"},
    {"overline", kDeco, "overline"},
    {"bar", kDeco, "overline"},
    {"overrightarrow", kDeco, "vec"},
    {"vec", kDeco, "vec"},
    {"hat", kDeco, "hat"},
    {"widehat", kDeco, "hat"},
    {"tilde", kDeco, "tilde"},
    {"dot", kDeco, "dot"},
    {"underline", kDeco, "bold"},
    {"varepsilon", kSym, "epsilon"},
    {"varphi", kSym, "phi"},
    {"dots", kSym, "ldots"},
    {"cdots", kSym, "ldots"},
};

constexpr absl::string_view kFunctions[] = {
    "sin",  "cos",  "tan",  "cot",  "sec", "csc",   "arcsin", "arccos", "arctan", "sinh",
    "cosh", "tanh", "ln",   "log",  "lg",  "exp",   "min",    "max",    "gcd",    "lcm",
    "asin", "acos", "atan", "sqrt", "abs", "floor", "ceil",   "cosec",  "cotan",  "arccot"};

}  // namespace

CommandRow FindCommand(absl::string_view name) {
  static const auto* const rows = [] {
    auto* const made = new absl::flat_hash_map<absl::string_view, CommandRow>;
    for (const CommandRow& row : kCommands) made->emplace(row.name, row);
    for (const absl::string_view function : kFunctions)
      made->try_emplace(function, CommandRow{function, CommandAction::kFunction, function});
    return made;
  }();
  const auto it = rows->find(name);
  return it != rows->end() ? it->second : CommandRow{name, CommandAction::kSymbol, name};
}

bool IsFunctionName(absl::string_view name) {
  for (const absl::string_view function : kFunctions) {
    if (function == name) return true;
  }
  return false;
}

absl::string_view FindConstantWord(absl::string_view word) {
  if (word == "pi") return "pi";
  if (word == "infty" || word == "infinity" || word == "inf" || word == "oo") return "infinity";
  for (const absl::string_view greek :
       {"alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "sigma", "omega", "phi"}) {
    if (word == greek) return greek;
  }
  return "";
}

}  // namespace sluice::math
