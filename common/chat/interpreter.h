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

// One rendering of a program. Expressions in evaluate.cc, statements in interpreter.cc.
class Interpreter {
 public:
  Interpreter(const Program& program, Meter* meter, absl::Time now)
      : program_(program), meter_(*meter), now_(now) {
    for (const std::string& name : program.symbols) root_.push_back(Value::Undefined(name));
  }
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;

  void Define(Symbol symbol, Value value) { root_[symbol] = std::move(value); }  // Before Run.
  void Run();
  std::string TakeOutput() { return std::move(*output_); }
  // [begin, end) bytes of the output that generation blocks printed.
  const std::vector<std::pair<size_t, size_t>>& generated() const { return generated_; }

  // For functions and objects.
  Meter& meter() { return meter_; }
  absl::Time now() const { return now_; }
  Value CallValue(const Value& callee, Values args, Keywords keywords);
  // value[key], as templates see it: undefined where Python raises.
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
  // Names bound in a scope lie together in bindings_, from `begin` to the next scope's. Scope 0 is
  // root_.
  struct Scope {
    size_t begin;
    int parent;
    uint64_t id;  // Never used twice.
  };
  class InScope;
  class Captured;

  // Statements.
  Flow RunBody(const Body& body);
  Flow RunStatement(const Statement& statement);
  Flow RunIf(const Statement& choice);
  Flow RunFor(const Statement& loop);
  Flow RunItems(const Statement& loop, absl::Span<const Value> items);
  void RunGeneration(const Statement& block);
  void RunSetBlock(const Statement& set);
  void RunCallBlock(const Statement& call);
  Value CaptureBody(const Body& body);
  Value Filtered(const Expression& filters, Value text);
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
  // The value without a copy, where it is stored somewhere, else in *made: until anything else is
  // evaluated, or *made goes.
  const Value& Read(const Expression& e, Value* made);
  bool Holds(const Expression& e);  // Whether it is true.
  void Enter(const Expression& e) {
    meter_.Step();
    meter_.at = e.at;
  }
  // `value`: what its first `done` operators give.
  Value EvalChain(const Expression& e, size_t done, Value value);
  Value EvalConcat(const Expression& e);
  Value EvalDict(const Expression& e);
  bool EvalCompare(const Expression& e);
  bool EvalTest(const Expression& e);
  Value EvalAttribute(const Expression& e, const Value& object);
  std::optional<Value> Member(const Value& object, absl::string_view name, const Function* method,
                              Builtin builtin);
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
  // text_, or that of the innermost macro or block whose output is a value.
  std::string* output_ = &text_;
  size_t outer_bytes_ = 0;  // In the outputs around it.
  std::vector<std::pair<size_t, size_t>> generated_;
  Value filter_input_;  // Of the filter block at hand.
  int macros_ = 0;      // Active macro calls, and the levels of all their bodies.
  int nesting_ = 0;
};

// Python's operators. They fail with the types they cannot take.
Value Arithmetic(Meter& meter, Operator op, Value a, const Value& b);
bool Compare(Meter& meter, Operator op, const Value& a, const Value& b);
bool Contains(Meter& meter, const Value& container, const Value& item);
Value Negate(Meter& meter, const Value& value);
// value[start:stop:step] of a list, tuple, range or str; a missing bound is Undefined.
Value Slice(Meter& meter, const Value& value, const Value& start, const Value& stop,
            const Value& step);

// What a for runs over: items of a list, keys of a dict, characters. Empties a generator. `owner`
// keeps the items alive.
absl::Span<const Value> Items(Meter& meter, const Value& value, Value* owner);

}  // namespace sluice::chat
