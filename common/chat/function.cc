#include "common/chat/function.h"

#include "absl/strings/str_cat.h"
#include "common/chat/interpreter.h"

namespace sluice::chat {

int64_t Call::Int(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  if (args[i].is_integer()) return args[i].integer();
  Invalid(absl::StrCat("argument ", i, " is a ", TypeName(args[i]), "; wanted: an int"));
}

absl::string_view Call::Str(size_t i) const {
  if (args[i].is_string()) return args[i].text();
  const std::string seen =
      args[i].is(Value::kUndefined) ? "undefined" : absl::StrCat("a ", TypeName(args[i]));
  Invalid(i == 0 ? absl::StrCat("needs a str, got ", seen)
                 : absl::StrCat("argument ", i, " is ", seen, "; wanted: a str"));
}

void Call::Invalid(absl::string_view what) const {
  meter.Invalid(absl::StrCat(function.name, ": ", what));
}

Value Invoke(Interpreter& in, const Function& function, Values args, const Keywords& keywords,
             bool with_self) {
  Meter& meter = in.meter();
  meter.Step();
  const auto call = [&] { return Call{in, meter, function, args, keywords}; };
  if (function.required == Function::kVariadic) return function.run(call());
  const size_t self = with_self ? 1 : 0, given = args.size(),
               limit = self + static_cast<size_t>(function.parameter_count());
  if (given > limit)
    call().Invalid(absl::StrCat("takes at most ", limit - self, " arguments, got ", given - self));
  args.resize(limit);
  size_t named = 0;
  for (const auto& [name, value] : keywords) {
    size_t i = self;
    while (i < limit && function.parameters[i - self] != name) ++i;
    if (i == limit) call().Invalid(absl::StrCat("has no parameter ", name));
    if (i < given) call().Invalid(absl::StrCat("the argument ", name, " is given twice"));
    args[i] = value;
    named += i < self + static_cast<size_t>(function.required);
  }
  if (std::min(given, self + function.required) + named < self + function.required) {
    call().Invalid(absl::StrCat("needs ", function.required, " arguments, got ",
                                given - self + keywords.size()));
  }
  return function.run(call());
}

}  // namespace sluice::chat
