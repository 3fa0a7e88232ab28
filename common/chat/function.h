#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/chat/value.h"

namespace sluice::chat {

class Interpreter;
struct Function;

using Values = absl::InlinedVector<Value, 6>;
using Keywords = absl::InlinedVector<std::pair<absl::string_view, Value>, 2>;

// What a filter, test, method or global is called with. Arguments come in the order of its
// parameters, Undefined where neither given nor keyword; a variadic function gets them as they were
// written.
struct Call {
  Interpreter& in;
  Meter& meter;
  const Function& function;
  // The value a filter or test is applied to, or a method's object, comes first.
  absl::Span<const Value> args;
  const Keywords& keywords;  // Of a variadic function only.

  const Value& operator[](size_t i) const { return args[i]; }
  bool has(size_t i) const { return !args[i].is(Value::kUndefined); }
  // Arguments as types; fails, naming function and parameter, on another.
  int64_t Int(size_t i, int64_t otherwise) const;
  bool Flag(size_t i, bool otherwise) const { return has(i) ? Truth(args[i]) : otherwise; }
  absl::string_view Str(size_t i) const;
  absl::string_view Str(size_t i, absl::string_view otherwise) const {
    return has(i) ? Str(i) : otherwise;
  }
  Value Text(absl::string_view text) const { return Value::Copy(meter, text); }
  [[noreturn]] void Invalid(absl::string_view what) const;  // "trim: what"
};

struct Function {
  static constexpr int kVariadic = -1;

  absl::string_view name;
  Value (*run)(const Call& call);
  int required = 0;  // Parameters without default, the first one not counted; kVariadic.
  std::array<absl::string_view, 4> parameters = {};  // Behind the first one.

  int most() const {
    int n = 0;
    while (n < 4 && !parameters[n].empty()) ++n;
    return n;
  }
};

// Null: no such function. The listings are in filters.cc, tests.cc, methods.cc and globals.cc.
const Function* FindFilter(absl::string_view name);
const Function* FindTest(absl::string_view name);  // Gives a Bool.
absl::Span<const Function> Globals();

enum class Type { kStr, kDict, kList, kRange, kNumber };  // kList: tuples too.
inline constexpr int kTypes = 5;
const Function* FindMethod(Type type, absl::string_view name);
// What Python's type has under a name that is no method here.
enum class Builtin : uint8_t {
  kAbsent,
  kUnbuilt,    // Python has it: refused by name, rather than called undefined.
  kForbidden,  // It changes a list or dict: undefined to templates (immutable sandbox).
};
Builtin PythonBuiltin(Type type, absl::string_view name);

// Binds arguments to parameters and runs the function. `args` begins with the value it is applied
// to (globals: none).
Value Invoke(Interpreter& in, const Function& function, Values args, const Keywords& keywords,
             bool with_self = true);

}  // namespace sluice::chat
