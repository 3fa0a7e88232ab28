#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/chat/function.h"
#include "common/chat/value.h"

namespace sluice::chat {

// A value with a state or a body: namespace, macro, loop, cycler, joiner. The interpreter owns it
// until the rendering ends.
class Object {
 public:
  virtual ~Object() = default;
  virtual absl::string_view TypeName() const = 0;
  virtual bool callable() const { return false; }
  virtual Value Attribute(Interpreter& in, absl::string_view name);  // Undefined if there is none.
  virtual Value CallMethod(Interpreter& in, absl::string_view name, Values args,
                           const Keywords& keywords);
  virtual Value Call(Interpreter& in, Values args, Keywords keywords);
};

class Namespace : public Object {
 public:
  absl::string_view TypeName() const override { return "Namespace"; }
  Value Attribute(Interpreter& in, absl::string_view name) override;
  void Set(Meter& meter, Value name, Value value);

 private:
  std::vector<std::pair<Value, Value>> attributes_;
};

// The variable `loop` in the body of a `for`.
class Loop : public Object {
 public:
  explicit Loop(absl::Span<const Value> items) : items_(items) {}
  void MoveTo(size_t index) { index_ = index; }
  absl::string_view TypeName() const override { return "LoopContext"; }
  Value Attribute(Interpreter& in, absl::string_view name) override;
  Value CallMethod(Interpreter& in, absl::string_view name, Values args,
                   const Keywords& keywords) override;
  Value Call(Interpreter& in, Values args, Keywords keywords) override;
  void DropItems() { items_ = {}; }  // Call it before the items are destroyed.

 private:
  absl::Span<const Value> items_;
  size_t index_ = 0;
  // Arguments of the last call of changed(), if it was called.
  Value last_changed_args_;
  bool changed_called_ = false;
};

// cycler(a, b), with .next(), .current, .reset().
class Cycler : public Object {
 public:
  explicit Cycler(Values items) : items_(std::move(items)) { SLUICE_CHECK(!items_.empty()); }
  absl::string_view TypeName() const override { return "Cycler"; }
  Value Attribute(Interpreter& in, absl::string_view name) override;
  Value CallMethod(Interpreter& in, absl::string_view name, Values args,
                   const Keywords& keywords) override;

 private:
  const Values items_;  // Not empty.
  size_t at_ = 0;
};

// joiner(separator): returns "" on the first call and the separator on each later one.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  absl::string_view TypeName() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value Call(Interpreter& in, Values args, Keywords keywords) override;

 private:
  const Value separator_;
  bool used_ = false;
};

}  // namespace sluice::chat
