#include "common/chat/object.h"

#include "absl/strings/str_cat.h"
#include "common/chat/interpreter.h"

namespace sluice::chat {

Value Object::Attribute(Interpreter&, absl::string_view) { return Value(); }

Value Object::CallMethod(Interpreter& in, absl::string_view name, Values, const Keywords&) {
  in.meter().Invalid(absl::StrCat("a ", TypeName(), " has no method ", name));
}

Value Object::Call(Interpreter& in, Values, Keywords) {
  in.meter().Invalid(absl::StrCat("a ", TypeName(), " cannot be called"));
}

Value Namespace::Attribute(Interpreter& in, absl::string_view name) {
  in.meter().Work(static_cast<int64_t>(attributes_.size() / 8));
  for (const auto& [key, value] : attributes_) {
    if (key.text() == name) return value;
  }
  return Value();
}

void Namespace::Set(Meter& meter, Value name, Value value) {
  meter.Work(static_cast<int64_t>(attributes_.size() / 8));
  for (auto& [key, old] : attributes_) {
    if (key.text() != name.text()) continue;
    old = std::move(value);
    return;
  }
  attributes_.emplace_back(std::move(name), std::move(value));
}

Value Loop::Attribute(Interpreter& in, absl::string_view name) {
  const auto index = static_cast<int64_t>(index_), length = static_cast<int64_t>(items_.size());
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 >= length);
  if (name == "length") return Value::Int(length);
  if (name == "revindex") return Value::Int(length - index);
  if (name == "revindex0") return Value::Int(length - index - 1);
  if (name == "previtem") return index > 0 && index <= length ? items_[index - 1] : Value();
  if (name == "nextitem") return index + 1 < length ? items_[index + 1] : Value();
  if (name == "depth") return Value::Int(1);  // Depth of recursion; recursive loops are not built.
  if (name == "depth0") return Value::Int(0);
  return Value();
}

Value Loop::CallMethod(Interpreter& in, absl::string_view name, Values args,
                       const Keywords& keywords) {
  if (name == "cycle" && keywords.empty()) {
    if (args.empty()) in.meter().Invalid("loop.cycle needs values");
    return args[index_ % args.size()];
  }
  if (name == "changed" && keywords.empty()) {
    ArrayBuilder values(in.meter(), Array::kTuple);
    for (const Value& arg : args) values.Add(arg);
    Value now = std::move(values).Take();
    const bool changed = !changed_called_ || !Equal(in.meter(), last_changed_args_, now);
    changed_called_ = true;
    last_changed_args_ = std::move(now);
    return Value::Bool(changed);
  }
  return Object::CallMethod(in, name, std::move(args), keywords);
}

Value Loop::Call(Interpreter& in, Values, Keywords) { in.meter().Unsupported("a recursive loop"); }

Value Cycler::Attribute(Interpreter&, absl::string_view name) {
  return name == "current" ? items_[at_] : Value();
}

Value Cycler::CallMethod(Interpreter& in, absl::string_view name, Values args,
                         const Keywords& keywords) {
  if (name == "next" && args.empty() && keywords.empty()) {
    const Value item = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return item;
  }
  if (name == "reset" && args.empty() && keywords.empty()) {
    at_ = 0;
    return Value::None();
  }
  return Object::CallMethod(in, name, std::move(args), keywords);
}

Value Joiner::Call(Interpreter& in, Values args, Keywords keywords) {
  if (!args.empty() || !keywords.empty()) in.meter().Invalid("a joiner takes no arguments");
  if (used_) return separator_;
  used_ = true;
  return Value::Borrow("");
}

}  // namespace sluice::chat
