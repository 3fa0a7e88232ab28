#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/chat/ast.h"
#include "common/chat/limits.h"
#include "common/chat/object.h"
#include "common/chat/value.h"

namespace sluice::chat {

// One rendering of a program. Expressions are in evaluate.cc, statements in interpreter.cc. Used by
// one thread.
class Interpreter {
 public:
  Interpreter(const Program& program, Meter* meter, absl::Time now)
      : program_(program), meter_(*meter), now_(now) {
    for (const std::string& name : program.symbols) root_.push_back(Value::Undefined(name));
  }
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;

  // Must be called before Run().
  void Define(Symbol symbol, Value value) { root_[symbol] = std::move(value); }
  void Run();
  std::string TakeOutput() { return std::move(*output_); }
  // The byte ranges [begin, end) of the output that generation blocks printed.
  const std::vector<std::pair<size_t, size_t>>& generated() const { return generated_; }

  // Used by functions and objects.
  Meter& meter() { return meter_; }
  absl::Time now() const { return now_; }
  Value CallValue(const Value& callee, Values args, Keywords keywords);
  // Returns value[key] as templates see it: undefined where Python raises an error.
  Value Subscript(const Value& value, const Value& key);
  template <typename T, typename... Args>
  T* New(Args&&... args) {
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* const plain = object.get();
    objects_.push_back(std::move(object));
    return plain;
  }

 private:
  friend class MacroObject;
  enum class Flow { kNext, kBreak, kContinue };
  // The names bound in a scope are together in bindings_, from `begin` to the `begin` of the next
  // scope. Scope 0 is the template itself, whose names are in root_. `parent` is the scope where a
  // lookup continues. It has a lower index, so every lookup ends at scope 0.
  struct Scope {
    size_t begin;
    int parent;
    uint64_t id;  // Unique, never reused: tells whether a macro's scope still exists.
  };
  class InScope;
  class Captured;

  // Statements.
  Flow RunBody(const Body& body);
  Flow RunStatement(const Statement& statement);
  Flow RunIf(const Statement& choice);
  Flow RunFor(const Statement& loop);
  Flow RunLoop(const Statement& loop, absl::Span<const Value> items);
  void RunGeneration(const Statement& block);
  Flow RunSetBlock(const Statement& set);
  Flow RunFilterBlock(const Statement& block);
  void RunCallBlock(const Statement& call);
  Flow CaptureBody(const Body& body, Value* text);
  Value ApplyFilters(const Expression& filters, Value text);
  void Print(const Expression& e);
  void PrintValue(const Value& value, uint32_t at);
  void Emit(absl::string_view text) {
    meter_.CheckText(outer_bytes_ + output_->size() + text.size());
    meter_.WorkOnBytes(text.size());
    output_->append(text.data(), text.size());
  }
  void Assign(const Target& target, Value value);
  void Bind(Symbol symbol, Value value);
  const Value& Lookup(Symbol symbol) const;
  Value CallMacro(const Macro& macro, int scope, uint64_t scope_id, Values args, Keywords keywords);

  // Expressions.
  Value Eval(const Expression& e);
  // Returns the value without a copy if it is stored somewhere, else a reference to *made. The
  // reference is valid until anything else is evaluated or *made ends.
  const Value& Read(const Expression& e, Value* made);
  bool EvalTruth(const Expression& e);  // The truth value of the expression.
  // Counts the expression as a step, and makes it the place where a failure would be reported.
  void Enter(const Expression& e) {
    meter_.Step();
    meter_.at = e.at;
  }
  // Evaluates the rest of a chain. `value` is the result of its first `done` operators.
  Value EvalChain(const Expression& e, size_t done, Value value);
  Value EvalConcat(const Expression& e);
  Value EvalDict(const Expression& e);
  bool EvalCompare(const Expression& e);
  bool EvalTest(const Expression& e);
  Value EvalAttribute(const Expression& e, const Value& object);
  std::optional<Value> FindMember(const Value& object, absl::string_view name,
                                  const Function* method, Builtin builtin);
  Value ItemAt(const Value& value, int64_t i);
  Value EvalSlice(const Expression& e);
  Value EvalCall(const Expression& e, Keywords keywords);
  Value EvalFunction(const Expression& e);  // Filters, and tests with arguments.
  void AddArguments(const Expression& e, Values* args);
  void AddKeywords(const Expression& e, Keywords* keywords);

  const Program& program_;
  Meter& meter_;
  const absl::Time now_;
  std::vector<Value> root_;  // By symbol.
  std::vector<std::pair<Symbol, Value>> bindings_;
  std::vector<Scope> scopes_ = {{0, -1, 0}};
  uint64_t next_scope_ = 1;
  std::vector<std::unique_ptr<Object>> objects_;
  std::string text_;
  // The current output: text_, or that of the innermost macro or block whose output is a value.
  std::string* output_ = &text_;
  size_t outer_bytes_ = 0;  // Bytes in the outputs around the current one.
  std::vector<std::pair<size_t, size_t>> generated_;
  Value filter_input_;  // Input of the first filter of a filter or set block.
  int macros_ = 0;      // Number of active macro calls.
  // Sum of the levels of all active macros.
  int nesting_ = 0;
};

// Python's operators. They fail for types that they do not support.
Value Arithmetic(Meter& meter, Operator op, Value a, const Value& b);
bool Compare(Meter& meter, Operator op, const Value& a, const Value& b);
bool Contains(Meter& meter, const Value& container, const Value& item);
Value Negate(Meter& meter, const Value& value);
// Returns value[start:stop:step] of a list, tuple, range or str; a missing bound is Undefined.
Value Slice(Meter& meter, const Value& value, const Value& start, const Value& stop,
            const Value& step);

// Returns what a `for` runs over: items of a list, keys of a dict, characters of a str. Empties a
// generator. `owner` keeps the items alive if they had to be made.
absl::Span<const Value> Items(Meter& meter, const Value& value, Value* owner);

}  // namespace sluice::chat
