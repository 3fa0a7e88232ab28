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

// The call of a filter, test, method or global function. Arguments are in the order of the
// function's parameters; one that was not given is Undefined. A variadic function gets them as they
// were written.
struct Call {
  Interpreter& in;
  Meter& meter;
  const Function& function;
  // First comes the value that a filter or test is applied to, or the object of a method.
  absl::Span<const Value> args;
  const Keywords& keywords;  // For variadic functions only.

  const Value& operator[](size_t i) const { return args[i]; }
  bool has(size_t i) const { return !args[i].is(Value::kUndefined); }
  // Int() and Str() return an argument as a type, and fail if it has another type; the message
  // names the function and the number of the argument. Flag() returns the truth value of any type.
  int64_t Int(size_t i, int64_t otherwise) const;
  bool Flag(size_t i, bool otherwise) const { return has(i) ? Truth(args[i]) : otherwise; }
  absl::string_view Str(size_t i) const;
  absl::string_view Str(size_t i, absl::string_view otherwise) const {
    return has(i) ? Str(i) : otherwise;
  }
  Value Text(absl::string_view text) const { return Value::Copy(meter, text); }
  [[noreturn]] void Invalid(absl::string_view what) const;  // Fails with "trim: what".
};

struct Function {
  static constexpr int kVariadic = -1;

  absl::string_view name;
  Value (*run)(const Call& call);
  // Number of parameters without default, not counting the first value; or kVariadic.
  int required = 0;
  std::array<absl::string_view, 4> parameters = {};  // The parameters after the first value.

  int parameter_count() const {
    int n = 0;
    while (n < 4 && !parameters[n].empty()) ++n;
    return n;
  }
};

// Return null if there is no such function. The tables are in filters_*.cc, tests.cc, methods.cc
// and globals.cc.
const Function* FindFilter(absl::string_view name);
const Function* FindTest(absl::string_view name);  // Returns a Bool when it is run.
absl::Span<const Function> Globals();

enum class Type { kStr, kDict, kList, kRange, kNumber };  // kList includes tuples.
inline constexpr int kTypes = 5;
const Function* FindMethod(Type type, absl::string_view name);
// What Python's type has under a name that is not a method here.
enum class Builtin : uint8_t {
  kAbsent,
  kUnbuilt,    // Python has it, but it is not built: refused by name.
  kForbidden,  // It changes a list or dict; undefined in templates (immutable sandbox).
};
Builtin PythonBuiltin(Type type, absl::string_view name);

// Binds arguments to parameters and runs the function. `args` begins with the value that it is
// applied to; without `with_self` (global functions) there is none.
Value Invoke(Interpreter& in, const Function& function, Values args, const Keywords& keywords,
             bool with_self = true);

}  // namespace sluice::chat
