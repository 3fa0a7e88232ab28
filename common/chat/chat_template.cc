#include "common/chat/chat_template.h"

#include <map>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/chat/ast.h"

namespace sluice {
namespace chat {
namespace {

constexpr int64_t kMaxSteps = 1'000'000;
constexpr size_t kMaxOutput = 4 << 20;
constexpr size_t kMaxSource = 1 << 20;

// A value, or nothing (Jinja's undefined: prints nothing, is false). Items and members point into what holds them, so that
// no expression copies a list.
using Maybe = std::shared_ptr<const Value>;

Maybe Make(Value value) { return std::make_shared<const Value>(std::move(value)); }

bool Truth(const Maybe& v) {
  if (!v || v->is_null()) return false;
  if (v->is_boolean()) return v->get<bool>();
  if (v->is_number()) return v->get<double>() != 0;
  if (v->is_string()) return !v->get_ref<const std::string&>().empty();
  return !v->empty();
}

// json.dumps(x, ensure_ascii=False): ", " and ": " as separators.
void AppendJson(const Value& v, std::string* out) {
  if (v.is_object() || v.is_array()) {
    out->push_back(v.is_object() ? '{' : '[');
    bool first = true;
    for (const auto& [key, item] : v.items()) {
      if (!first) out->append(", ");
      first = false;
      if (v.is_object()) absl::StrAppend(out, Value(key).dump(), ": ");
      AppendJson(item, out);
    }
    out->push_back(v.is_object() ? '}' : ']');
  } else {
    out->append(v.dump());
  }
}

// str(x) of Python.
absl::StatusOr<std::string> Print(const Maybe& v, const Token& at) {
  if (!v) return std::string();
  if (v->is_string()) return v->get<std::string>();
  if (v->is_null()) return std::string("None");
  if (v->is_boolean()) return std::string(v->get<bool>() ? "True" : "False");
  if (v->is_number()) return v->dump();
  return ErrorAt(at, absl::StatusCode::kUnimplemented, "printing a list or mapping is not supported by this build; use | tojson");
}

class Renderer {
 public:
  explicit Renderer(const Value& variables) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables.items()) scopes_[0][name] = Maybe(Maybe(), &value);  // Outlives the renderer.
  }

  absl::Status Run(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      SLUICE_RETURN_IF_ERROR(Step(node.at));
      SLUICE_RETURN_IF_ERROR(RunNode(node));
    }
    return absl::OkStatus();
  }
  std::string TakeOutput() { return std::move(out_); }

 private:
  absl::Status Step(const Token& at) {
    if (++steps_ > kMaxSteps) return ErrorAt(at, absl::StatusCode::kResourceExhausted, absl::StrCat("more than ", kMaxSteps, " steps"));
    return absl::OkStatus();
  }
  absl::Status CheckSize(size_t bytes, const Token& at) {
    if (bytes > kMaxOutput) return ErrorAt(at, absl::StatusCode::kResourceExhausted, absl::StrCat("more than ", kMaxOutput, " bytes of text"));
    return absl::OkStatus();
  }

  absl::Status RunNode(const Node& node) {
    switch (node.kind) {
      case Node::kText: return Emit(node.text, node.at);
      case Node::kPrint: {
        SLUICE_ASSIGN_OR_RETURN(const Maybe value, Eval(*node.expression));
        SLUICE_ASSIGN_OR_RETURN(const std::string text, Print(value, node.at));
        return Emit(text, node.at);
      }
      case Node::kSet: {
        SLUICE_ASSIGN_OR_RETURN(const Maybe value, Eval(*node.expression));
        scopes_.back()[node.text] = value;
        return absl::OkStatus();
      }
      case Node::kIf:
        for (const auto& [condition, body] : node.branches) {
          if (condition != nullptr) {
            SLUICE_ASSIGN_OR_RETURN(const Maybe value, Eval(*condition));
            if (!Truth(value)) continue;
          }
          return Run(body);
        }
        return absl::OkStatus();
      case Node::kFor: return RunFor(node);
    }
    return absl::OkStatus();
  }

  absl::Status RunFor(const Node& node) {
    SLUICE_ASSIGN_OR_RETURN(const Maybe list, Eval(*node.expression));
    if (list && !list->is_array()) return ErrorAt(node.at, absl::StatusCode::kInvalidArgument, absl::StrCat("for over a ", list->type_name(), "; a list is needed"));
    const size_t n = list ? list->size() : 0;
    if (n == 0) return node.branches.size() > 1 ? Run(node.branches[1].second) : absl::OkStatus();
    for (size_t i = 0; i < n; ++i) {
      SLUICE_RETURN_IF_ERROR(Step(node.at));
      scopes_.emplace_back();  // What a loop's body sets is gone after each turn.
      scopes_.back()[node.text] = Item(list, i);
      scopes_.back()["loop"] = Make({{"index", i + 1}, {"index0", i}, {"first", i == 0}, {"last", i + 1 == n}, {"length", n}});
      const absl::Status status = Run(node.branches[0].second);
      scopes_.pop_back();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Emit(absl::string_view text, const Token& at) {
    SLUICE_RETURN_IF_ERROR(CheckSize(out_.size() + text.size(), at));
    out_.append(text.data(), text.size());
    return absl::OkStatus();
  }

  absl::StatusOr<Maybe> Eval(const Expression& e) {
    SLUICE_RETURN_IF_ERROR(Step(e.at));
    switch (e.kind) {
      case Expression::kLiteral: return Maybe(Maybe(), &e.value);
      case Expression::kName:
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
          if (const auto it = scope->find(e.name); it != scope->end()) return it->second;
        }
        return Maybe();
      case Expression::kAttribute: {
        SLUICE_ASSIGN_OR_RETURN(const Maybe object, Eval(*e.operands[0]));
        if (!object) return Invalid(e, absl::StrCat("an undefined value has no attribute ", e.name));
        return Member(object, e.name);
      }
      case Expression::kSubscript: return Subscript(e);
      case Expression::kList: {
        Value list = Value::array();
        for (const auto& operand : e.operands) {
          SLUICE_ASSIGN_OR_RETURN(Maybe item, Eval(*operand));
          list.push_back(item ? *item : Value());
        }
        return Make(std::move(list));
      }
      case Expression::kUnary: {
        SLUICE_ASSIGN_OR_RETURN(const Maybe value, Eval(*e.operands[0]));
        if (e.name == "not") return Make(Value(!Truth(value)));
        if (!value || !value->is_number()) return Invalid(e, "- needs a number");
        return Make(value->is_number_integer() ? Value(-value->get<int64_t>()) : Value(-value->get<double>()));
      }
      case Expression::kBinary: return Binary(e);
      case Expression::kIf: {
        SLUICE_ASSIGN_OR_RETURN(const Maybe condition, Eval(*e.operands[0]));
        if (Truth(condition)) return Eval(*e.operands[1]);
        return e.operands.size() > 2 ? Eval(*e.operands[2]) : absl::StatusOr<Maybe>(Maybe());
      }
      case Expression::kFilter: return Filter(e);
      case Expression::kTest: return Test(e);
      case Expression::kCall: {
        SLUICE_ASSIGN_OR_RETURN(const Maybe message, Eval(*e.operands[0]));
        SLUICE_ASSIGN_OR_RETURN(const std::string text, Print(message, e.at));
        return Invalid(e, absl::StrCat("the template refuses: ", text));
      }
    }
    return Maybe();
  }

  absl::Status Invalid(const Expression& e, absl::string_view what) { return ErrorAt(e.at, absl::StatusCode::kInvalidArgument, what); }

  static Maybe Member(const Maybe& object, const std::string& key) {
    if (!object->is_object()) return Maybe();
    const auto it = object->find(key);
    return it == object->end() ? Maybe() : Maybe(object, &*it);
  }
  static Maybe Item(const Maybe& list, size_t i) { return Maybe(list, &(*list)[i]); }
  // As Python: True is 1, False is 0.
  static bool Same(const Maybe& a, const Maybe& b) {
    if (!a || !b) return !a && !b;
    if (a->is_boolean() && b->is_number()) return (a->get<bool>() ? 1.0 : 0.0) == b->get<double>();
    if (b->is_boolean() && a->is_number()) return Same(b, a);
    return *a == *b;
  }

  absl::StatusOr<Maybe> Subscript(const Expression& e) {
    SLUICE_ASSIGN_OR_RETURN(const Maybe object, Eval(*e.operands[0]));
    SLUICE_ASSIGN_OR_RETURN(const Maybe index, Eval(*e.operands[1]));
    if (!object) return Invalid(e, "an undefined value has no items");
    if (index && index->is_string()) return Member(object, index->get<std::string>());
    if (!index || !index->is_number_integer()) return Invalid(e, "a subscript is a string or an integer");
    if (object->is_string()) return ErrorAt(e.at, absl::StatusCode::kUnimplemented, "a subscript of a string is not supported by this build");
    if (!object->is_array()) return Maybe();
    int64_t i = index->get<int64_t>();
    const int64_t n = static_cast<int64_t>(object->size());
    if (i < 0) i += n;
    return i >= 0 && i < n ? Item(object, i) : Maybe();
  }

  absl::StatusOr<Maybe> Binary(const Expression& e) {
    SLUICE_ASSIGN_OR_RETURN(const Maybe left, Eval(*e.operands[0]));
    if (e.name == "and" || e.name == "or") return Truth(left) == (e.name == "or") ? absl::StatusOr<Maybe>(left) : Eval(*e.operands[1]);
    SLUICE_ASSIGN_OR_RETURN(const Maybe right, Eval(*e.operands[1]));
    if (e.name == "==" || e.name == "!=") return Make(Value(Same(left, right) == (e.name == "==")));
    if (e.name == "in" || e.name == "not in") {
      SLUICE_ASSIGN_OR_RETURN(const bool found, Contains(e, right, left));
      return Make(Value(found == (e.name == "in")));
    }
    if (e.name == "~" || (e.name == "+" && left && right && left->is_string() && right->is_string())) {
      SLUICE_ASSIGN_OR_RETURN(const std::string a, Print(left, e.at));
      SLUICE_ASSIGN_OR_RETURN(const std::string b, Print(right, e.at));
      SLUICE_RETURN_IF_ERROR(CheckSize(a.size() + b.size(), e.at));
      return Make(Value(a + b));
    }
    if (!left || !right || !left->is_number() || !right->is_number()) {
      if (left && right && left->is_string() && right->is_string() && (e.name[0] == '<' || e.name[0] == '>')) return CompareOf(e, left->get<std::string>(), right->get<std::string>());
      const bool comparison = e.name[0] == '<' || e.name[0] == '>';
      if (left && right && (!comparison || left->is_array())) return ErrorAt(e.at, absl::StatusCode::kUnimplemented, absl::StrCat(e.name, " of ", left->type_name(), " and ", right->type_name(), " is not supported by this build"));
      return Invalid(e, absl::StrCat("cannot apply ", e.name, " to ", left ? left->type_name() : "undefined", " and ", right ? right->type_name() : "undefined"));
    }
    if (left->is_number_integer() && right->is_number_integer()) return Integers(e, left->get<int64_t>(), right->get<int64_t>());
    const double a = left->get<double>(), b = right->get<double>();
    if (e.name == "+") return Make(Value(a + b));
    if (e.name == "-") return Make(Value(a - b));
    if (e.name == "*") return Make(Value(a * b));
    if (e.name == "/" && b != 0) return Make(Value(a / b));
    return CompareOf(e, a, b);
  }

  absl::StatusOr<Maybe> Integers(const Expression& e, int64_t a, int64_t b) {
    int64_t result = 0;
    if (e.name == "+" || e.name == "-" || e.name == "*") {
      const bool overflow = e.name == "+" ? __builtin_add_overflow(a, b, &result) : e.name == "-" ? __builtin_sub_overflow(a, b, &result) : __builtin_mul_overflow(a, b, &result);
      if (overflow) return Invalid(e, "integer overflow");
      return Make(Value(result));
    }
    if (e.name == "/" || e.name == "//" || e.name == "%") {
      if (b == 0 || (b == -1 && a == INT64_MIN)) return Invalid(e, "division by zero or overflow");
      if (e.name == "/") return Make(Value(static_cast<double>(a) / static_cast<double>(b)));
      int64_t quotient = a / b, rest = a % b;  // Python rounds down.
      if (rest != 0 && (rest < 0) != (b < 0)) --quotient, rest += b;
      return Make(Value(e.name == "//" ? quotient : rest));
    }
    return CompareOf(e, a, b);
  }

  template <typename T>
  absl::StatusOr<Maybe> CompareOf(const Expression& e, const T& a, const T& b) {
    if (e.name == "<") return Make(Value(a < b));
    if (e.name == "<=") return Make(Value(a <= b));
    if (e.name == ">") return Make(Value(a > b));
    if (e.name == ">=") return Make(Value(a >= b));
    return Invalid(e, absl::StrCat("cannot apply ", e.name, " here"));
  }

  absl::StatusOr<bool> Contains(const Expression& e, const Maybe& container, const Maybe& item) {
    if (container && container->is_array()) {
      for (const Value& candidate : *container) {
        SLUICE_RETURN_IF_ERROR(Step(e.at));
        if (item && candidate == *item) return true;
      }
      return false;
    }
    if (container && item && item->is_string()) {
      if (container->is_string()) return container->get_ref<const std::string&>().find(item->get<std::string>()) != std::string::npos;
      if (container->is_object()) return container->contains(item->get<std::string>());
    }
    return Invalid(e, "`in` needs a list, a mapping, or two strings");
  }

  absl::StatusOr<Maybe> Filter(const Expression& e) {
    SLUICE_ASSIGN_OR_RETURN(Maybe value, Eval(*e.operands[0]));
    if (e.name == "default") return value ? absl::StatusOr<Maybe>(value) : Eval(*e.operands[1]);
    if (!value) return Invalid(e, absl::StrCat("| ", e.name, " of an undefined value"));
    if (e.name == "tojson") {
      std::string out;
      AppendJson(*value, &out);
      SLUICE_RETURN_IF_ERROR(CheckSize(out.size(), e.at));
      return Make(Value(out));
    }
    if (e.name == "length" && !value->is_string()) return Make(Value(value->size()));
    if (!value->is_string()) return Invalid(e, absl::StrCat("| ", e.name, " of a ", value->type_name(), "; a string is needed"));
    const std::string& text = value->get_ref<const std::string&>();
    if (e.name == "trim") return Make(Value(std::string(absl::StripAsciiWhitespace(text))));
    int64_t code_points = 0;
    for (const char c : text) code_points += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
    return Make(Value(code_points));
  }

  absl::StatusOr<Maybe> Test(const Expression& e) {
    SLUICE_ASSIGN_OR_RETURN(const Maybe value, Eval(*e.operands[0]));
    bool result = value != nullptr;
    if (e.name == "none") result = value && value->is_null();
    if (e.name == "string") result = value && value->is_string();
    if (e.name == "mapping") result = value && value->is_object();
    if (e.name == "iterable") result = value && (value->is_array() || value->is_object() || value->is_string());
    return Make(Value(result != e.negated));
  }

  std::vector<std::map<std::string, Maybe>> scopes_;
  std::string out_;
  int64_t steps_ = 0;
};

}  // namespace
}  // namespace chat

struct ChatTemplate::Program {
  std::vector<chat::Node> nodes;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(absl::string_view source) {
  if (source.size() > chat::kMaxSource) return absl::InvalidArgumentError(absl::StrCat("the template has ", source.size(), " bytes; the limit is ", chat::kMaxSource));
  SLUICE_ASSIGN_OR_RETURN(std::vector<chat::Token> tokens, chat::Lex(source));
  auto program = std::make_unique<Program>();
  SLUICE_ASSIGN_OR_RETURN(program->nodes, chat::Parse(std::move(tokens)));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(program)));
}

absl::StatusOr<std::string> ChatTemplate::Render(const nlohmann::ordered_json& variables) const {
  chat::Renderer renderer(variables);
  SLUICE_RETURN_IF_ERROR(renderer.Run(program_->nodes));
  return renderer.TakeOutput();
}

}  // namespace sluice
