// Statements, names and macros.
#include "common/chat/interpreter.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/chat/print.h"

namespace sluice::chat {

// Opens a scope. Names bound while this object exists are removed when it ends. `parent` is the
// index of the scope where a lookup continues; -1: the innermost scope so far.
class Interpreter::InScope {
 public:
  explicit InScope(Interpreter* in, int parent = -1) : in_(in), begin_(in->bindings_.size()) {
    SLUICE_CHECK(parent < static_cast<int>(in->scopes_.size()));
    in->scopes_.push_back({begin_, parent >= 0 ? parent : static_cast<int>(in->scopes_.size()) - 1,
                           in->next_scope_++});
  }
  ~InScope() {
    Clear();
    in_->scopes_.pop_back();
  }
  void Clear() {
    in_->bindings_.erase(in_->bindings_.begin() + static_cast<ptrdiff_t>(begin_),
                         in_->bindings_.end());
  }

 private:
  Interpreter* const in_;
  const size_t begin_;
};

// Collects the output while this object exists.
class Interpreter::Captured {
 public:
  explicit Captured(Interpreter* in) : in_(in), outer_(in->output_) {
    in->outer_bytes_ += outer_->size();
    in->output_ = &text;
  }
  ~Captured() {
    in_->output_ = outer_;
    in_->outer_bytes_ -= outer_->size();
  }
  std::string text;

 private:
  Interpreter* const in_;
  std::string* const outer_;
};

class MacroObject : public Object {
 public:
  MacroObject(const Macro* macro, int scope, uint64_t scope_id)
      : macro_(*macro), scope_(scope), scope_id_(scope_id) {}
  absl::string_view TypeName() const override { return "Macro"; }
  bool callable() const override { return true; }
  Value Attribute(Interpreter&, absl::string_view name) override {
    return name == "name" ? Value::Borrow(macro_.name) : Value();
  }
  Value Call(Interpreter& in, Values args, Keywords keywords) override {
    return in.CallMacro(macro_, scope_, scope_id_, std::move(args), std::move(keywords));
  }

 private:
  const Macro& macro_;
  const int scope_;  // The scope in which it was defined.
  const uint64_t scope_id_;
};

Interpreter::~Interpreter() {
  // The values are destroyed before the objects, because values refer to objects. No destructor of
  // an object accesses another object.
  bindings_.clear();
  root_.clear();
}

void Interpreter::Run() { RunBody(program_.body); }

Interpreter::Flow Interpreter::RunBody(const Body& body) {
  for (const Statement& statement : body) {
    meter_.Step();
    const Flow flow = RunStatement(statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunStatement(const Statement& statement) {
  switch (statement.kind) {
    case Statement::kText:
      meter_.at = statement.at;
      Emit(statement.text);
      break;
    case Statement::kPrint: Print(*statement.expression); break;
    case Statement::kIf: return RunIf(statement);
    case Statement::kFor: return RunFor(statement);
    case Statement::kSet: Assign(statement.target, Eval(*statement.expression)); break;
    case Statement::kSetBlock: return RunSetBlock(statement);
    case Statement::kFilterBlock: return RunFilterBlock(statement);
    case Statement::kMacro:
      Bind(statement.target.symbol,
           Value::Of(New<MacroObject>(statement.macro.get(), static_cast<int>(scopes_.size()) - 1,
                                      scopes_.back().id)));
      break;
    case Statement::kCall: RunCallBlock(statement); break;
    case Statement::kWith: {
      // All values are evaluated before any of them is bound.
      std::vector<Value> values;
      for (const auto& [target, expression] : statement.bindings)
        values.push_back(Eval(*expression));
      const InScope scope(this);
      for (size_t i = 0; i < values.size(); ++i)
        Assign(statement.bindings[i].first, std::move(values[i]));
      return RunBody(*statement.body);
    }
    case Statement::kGeneration: RunGeneration(statement); break;
    case Statement::kBreak: return Flow::kBreak;
    case Statement::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunIf(const Statement& choice) {
  for (const auto& [condition, body] : choice.branches) {
    if (condition == nullptr || EvalTruth(*condition)) return RunBody(body);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunFor(const Statement& loop) {
  Value value = Eval(*loop.expression), owner;
  meter_.at = loop.at;
  absl::Span<const Value> items = Items(meter_, value, &owner);
  std::vector<Value> kept;
  // An inline `if` filters the items first, so that loop.length counts only those that are left.
  if (loop.condition != nullptr) {
    InScope scope(this);
    for (const Value& item : items) {
      meter_.Step();
      scope.Clear();
      Assign(loop.target, item);
      if (EvalTruth(*loop.condition)) kept.push_back(item);
    }
    items = kept;
  }
  if (items.empty()) return loop.otherwise != nullptr ? RunBody(*loop.otherwise) : Flow::kNext;
  return RunLoop(loop, items);
}

Interpreter::Flow Interpreter::RunLoop(const Statement& loop, absl::Span<const Value> items) {
  Loop* const state = loop.uses_loop ? New<Loop>(items) : nullptr;
  InScope scope(this);
  for (size_t i = 0; i < items.size(); ++i) {
    meter_.Step();
    scope.Clear();
    Assign(loop.target, items[i]);
    if (state != nullptr) {
      state->MoveTo(i);
      Bind(program_.loop, Value::Of(state));
    }
    if (RunBody(*loop.body) == Flow::kBreak) break;
  }

  // A namespace may keep the loop object longer than the items exist.
  if (state != nullptr) state->DropItems();
  return Flow::kNext;
}

// Runs a generation block and records the range that it prints, for the mask of the assistant's
// tokens. It has a scope of its own.
void Interpreter::RunGeneration(const Statement& block) {
  const size_t begin = output_->size();
  {
    const InScope scope(this);
    RunBody(*block.body);
  }
  generated_.emplace_back(begin, output_->size());
}

// Collects what the body prints in `text`. A break or continue leaves the block with its loop: what
// the body has printed is dropped.
Interpreter::Flow Interpreter::CaptureBody(const Body& body, Value* text) {
  Captured captured(this);
  Flow flow;
  {
    const InScope scope(this);
    flow = RunBody(body);
  }
  if (flow == Flow::kNext) *text = Value::Copy(meter_, captured.text);
  return flow;
}

Value Interpreter::ApplyFilters(const Expression& filters, Value text) {
  filter_input_ = std::move(text);
  return Eval(filters);
}

Interpreter::Flow Interpreter::RunSetBlock(const Statement& set) {
  Value text;
  const Flow flow = CaptureBody(*set.body, &text);
  if (flow != Flow::kNext) return flow;
  if (set.expression != nullptr) text = ApplyFilters(*set.expression, std::move(text));
  Assign(set.target, std::move(text));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunFilterBlock(const Statement& block) {
  Value text;
  const Flow flow = CaptureBody(*block.body, &text);
  if (flow != Flow::kNext) return flow;
  const Value filtered = ApplyFilters(*block.expression, std::move(text));
  meter_.at = block.at;
  AppendStr(meter_, filtered, output_);
  return Flow::kNext;
}

void Interpreter::RunCallBlock(const Statement& call) {
  Keywords keywords;
  keywords.emplace_back(
      "caller", Value::Of(New<MacroObject>(call.macro.get(), static_cast<int>(scopes_.size()) - 1,
                                           scopes_.back().id)));
  const Value text = EvalCall(*call.expression, std::move(keywords));
  meter_.at = call.at;
  AppendStr(meter_, text, output_);
}

// Prints the operands of + and ~ one by one, so that the joined text is not built.
void Interpreter::Print(const Expression& e) {
  Value made;
  if (e.kind == Expression::kConcat) {
    Enter(e);
    for (const ExpressionPtr& operand : e.operands) PrintValue(Read(*operand, &made), e.at);
    return;
  }

  if (e.kind != Expression::kChain) return PrintValue(Read(e, &made), e.at);
  Enter(e);
  const size_t begin = output_->size();
  for (size_t i = 0; i < e.operands.size(); ++i) {
    const Value& value = Read(*e.operands[i], &made);
    meter_.at = e.at;
    const bool added = i == 0 || e.operators[i - 1] == Operator::kAdd;
    if (added && value.is_string() && !value.safe()) {
      Emit(value.text());
      continue;
    }
    // The operand is not plain text: take back what was printed, add the operand to it, and print
    // the result.
    if (i == 0) return PrintValue(EvalChain(e, 0, value), e.at);
    Value sum = Value::Copy(meter_, absl::string_view(*output_).substr(begin));
    output_->resize(begin);
    return PrintValue(
        EvalChain(e, i, Arithmetic(meter_, e.operators[i - 1], std::move(sum), value)), e.at);
  }
}

void Interpreter::PrintValue(const Value& value, uint32_t at) {
  meter_.at = at;
  if (value.is_string()) {
    Emit(value.text());
  } else {
    AppendStr(meter_, value, output_);
  }
}

void Interpreter::Assign(const Target& target, Value value) {
  switch (target.kind) {
    case Target::kName: return Bind(target.symbol, std::move(value));
    case Target::kAttribute: {
      meter_.at = target.at;
      const Value owner = Lookup(target.symbol);
      // Only namespaces can be changed.
      auto* const space =
          owner.is(Value::kObject) ? dynamic_cast<Namespace*>(owner.object()) : nullptr;
      if (space == nullptr)
        meter_.Invalid(absl::StrCat("cannot set the attribute ", target.attribute, " of a ",
                                    TypeName(owner), "; wanted: a namespace"));
      return space->Set(meter_, Value::Borrow(target.attribute), std::move(value));
    }
    case Target::kTuple: {
      meter_.at = target.at;
      Value owner;
      const absl::Span<const Value> items = Items(meter_, value, &owner);
      if (items.size() != target.parts.size()) {
        meter_.Invalid(absl::StrCat("cannot unpack ", items.size(), " values into ",
                                    target.parts.size(), " names"));
      }
      for (size_t i = 0; i < items.size(); ++i) Assign(target.parts[i], items[i]);
    }
  }
}

void Interpreter::Bind(Symbol symbol, Value value) {
  // At the top level names are in root_, indexed by symbol.
  if (scopes_.size() == 1) {
    // An undefined value without a name gets the variable's, for the messages about it.
    const bool unnamed = value.is(Value::kUndefined) && value.text().empty();
    root_[symbol] = unnamed ? Value::Undefined(program_.symbols[symbol]) : std::move(value);
    return;
  }
  for (size_t i = scopes_.back().begin; i < bindings_.size(); ++i) {
    if (bindings_[i].first != symbol) continue;
    bindings_[i].second = std::move(value);
    return;
  }
  bindings_.emplace_back(symbol, std::move(value));
}

const Value& Interpreter::Lookup(Symbol symbol) const {
  size_t end = bindings_.size();
  for (int scope = static_cast<int>(scopes_.size()) - 1; scope > 0;) {
    for (size_t i = end; i > scopes_[scope].begin; --i) {
      if (bindings_[i - 1].first == symbol) return bindings_[i - 1].second;
    }
    scope = scopes_[scope].parent;
    // The names of the parent end where those of the scope after it begin. There is one, because
    // the innermost scope is nobody's parent.
    end = scopes_[scope + 1].begin;
  }
  return root_[symbol];
}

Value Interpreter::CallMacro(const Macro& macro, int scope, uint64_t scope_id, Values args,
                             Keywords keywords) {
  // The scope ids are unique, so a scope that has ended is recognised even if its place is used
  // again.
  if (scope >= static_cast<int>(scopes_.size()) || scopes_[scope].id != scope_id) {
    meter_.Invalid(absl::StrCat("the macro ", macro.name,
                                " is called after the block that defines it has ended"));
  }
  struct Levels {
    Levels(Interpreter* in, int height) : in(in), height(height) {
      ++in->macros_, in->nesting_ += height;
    }
    ~Levels() { --in->macros_, in->nesting_ -= height; }
    Interpreter* const in;
    const int height;
  } const levels(this, macro.height);

  if (macros_ > kMaxDepth || nesting_ > kMaxNesting) {
    meter_.Exceeded(absl::StrCat("macro calls are nested deeper than ",
                                 macros_ > kMaxDepth ? kMaxDepth : kMaxNesting,
                                 macros_ > kMaxDepth ? "" : " levels"));
  }

  Captured captured(this);
  const InScope inner(this, scope);
  // Removes the keyword argument `name` and returns whether it was given, and its value.
  const auto keyword = [&](absl::string_view name) {
    for (auto it = keywords.begin(); it != keywords.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      keywords.erase(it);
      return std::make_pair(true, std::move(value));
    }
    return std::make_pair(false, Value());
  };

  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Macro::Parameter& parameter = macro.parameters[i];
    auto [given, value] = i < args.size() ? std::make_pair(true, args[i]) : keyword(parameter.name);
    if (!given && parameter.otherwise != nullptr) value = Eval(*parameter.otherwise);
    if (!given && parameter.otherwise == nullptr) value = Value::Undefined(parameter.name);
    Bind(parameter.symbol, std::move(value));
  }

  auto [called, caller] = keyword("caller");
  if (macro.takes_caller) Bind(program_.caller, std::move(caller));
  if (called && !macro.takes_caller)
    meter_.Invalid(absl::StrCat("the macro ", macro.name,
                                " is called with a block, but does not use `caller`"));

  if (macro.takes_varargs) {
    ArrayBuilder rest(meter_, Array::kTuple);
    for (size_t i = macro.parameters.size(); i < args.size(); ++i) rest.Add(args[i]);
    Bind(program_.varargs, std::move(rest).Take());
  } else if (args.size() > macro.parameters.size()) {
    meter_.Invalid(absl::StrCat("the macro ", macro.name, " takes ", macro.parameters.size(),
                                " arguments, got ", args.size()));
  }
  if (macro.takes_kwargs) {
    DictBuilder rest(meter_);
    for (auto& [name, value] : keywords) rest.Assign(Value::Copy(meter_, name), std::move(value));
    Bind(program_.kwargs, std::move(rest).Take());
  } else if (!keywords.empty()) {
    meter_.Invalid(absl::StrCat("the macro ", macro.name, " has no parameter ", keywords[0].first));
  }

  RunBody(*macro.body);
  return Value::Copy(meter_, captured.text);
}

}  // namespace sluice::chat
