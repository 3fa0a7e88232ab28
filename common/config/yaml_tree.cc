#include "common/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <sstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/utf8.h"

namespace sluice::config {
namespace {

using Kind = YamlNode::Kind;

// Thrown to leave the parser.
struct TooDeep {};

// Builds the tree from the parser's events, because only these show anchors, tags and quotes.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(int source, Problems* problems) : source_(source), problems_(problems) {}

  YamlNode TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    problems_->Add(
        PlaceOf(mark), 2,
        absl::StrCat("anchor \"&", name, "\": job files have no anchors; write the value out"));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    problems_->Add(PlaceOf(mark), 2,
                   "alias: job files have no anchors and aliases; write the value out");
    AttachNode(MakeNode(mark, Kind::kNull));
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    AttachNode(MakeNode(mark, Kind::kNull));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    YamlNode node = MakeNode(mark, Kind::kScalar);
    node.text = value;
    node.quoted = tag == "!";
    if (tag != "!" && tag != "?" && !tag.empty()) CheckTag(mark, tag);
    if (!node.quoted && IsYesNo(value)) {
      problems_->Add(PlaceOf(mark), 2,
                     absl::StrCat("\"", value,
                                  "\" means different things to YAML readers; write true or false, "
                                  "or put it in quotes"));
    }
    if (absl::StrContains(value, "${")) {
      problems_->Add(PlaceOf(mark), 2,
                     "\"${\": job files have no substitution; use --set KEY=VALUE");
    }
    AttachNode(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    CheckTag(mark, tag);
    OpenNode(MakeNode(mark, Kind::kList));
  }
  void OnSequenceEnd() override { CloseNode(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    CheckTag(mark, tag);
    OpenNode(MakeNode(mark, Kind::kMap));
  }
  void OnMapEnd() override { CloseNode(); }

 private:
  struct Frame {
    YamlNode node;
    YamlNode::Key key;  // In a map: the key of the next value.
    bool has_key = false;
  };

  Place PlaceOf(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }
  YamlNode MakeNode(const YAML::Mark& mark, Kind kind) const {
    YamlNode node;
    node.kind = kind;
    node.place = PlaceOf(mark);
    return node;
  }
  static bool IsYesNo(const std::string& value) {
    const std::string lower = absl::AsciiStrToLower(value);
    return lower == "yes" || lower == "no" || lower == "on" || lower == "off";
  }
  void CheckTag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    problems_->Add(PlaceOf(mark), 2,
                   absl::StrCat("tag ", tag, ": job files have no tags; leave it out"));
  }

  void OpenNode(YamlNode node) {
    if (stack_.size() >= kMaxJobFileDepth) {
      problems_->Add(node.place, 2,
                     absl::StrCat("nested deeper than ", kMaxJobFileDepth, " levels"));
      throw TooDeep();
    }
    stack_.push_back({std::move(node), {}, false});
  }
  void CloseNode() {
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    AttachNode(std::move(node));
  }
  // Puts a finished node into the innermost open list or map.
  void AttachNode(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& top = stack_.back();
    // In a map, keys and values come in turn.
    if (top.node.kind == Kind::kList) {
      top.node.list.push_back(std::move(node));
    } else if (!top.has_key) {
      if (node.kind != Kind::kScalar) problems_->Add(node.place, 2, "a key must be a word");
      top.key = {node.text, node.place};
      top.has_key = true;
    } else {
      top.has_key = false;
      if (const YamlNode* first = top.node.Find(top.key.text)) {
        problems_->Add(top.key.place, 4,
                       absl::StrCat("duplicate key \"", top.key.text,
                                    "\"; its first value is in line ", first->place.line));
        return;
      }
      top.node.map.push_back({std::move(top.key), std::move(node)});
    }
  }

  const int source_;
  Problems* const problems_;
  std::vector<Frame> stack_;
  YamlNode root_;
};

// Returns the node at `part` inside `at`, created if necessary. Returns null after reporting a
// problem.
YamlNode* FindOrCreate(YamlNode* at, const std::string& part, const Place& place,
                       Problems* problems) {
  int64_t index = 0;
  if (at->kind == Kind::kList) {
    if (!absl::SimpleAtoi(part, &index) || index < 0 ||
        index > static_cast<int64_t>(at->list.size())) {
      problems->Add(place, 14,
                    absl::StrCat("\"", part, "\" is not an index of a list of ", at->list.size(),
                                 "; indexes count from 0"));
      return nullptr;
    }
    if (index == static_cast<int64_t>(at->list.size())) at->list.emplace_back();
    return &at->list[index];
  }

  // Anything else is replaced: by a list for the index 0, else by a block.
  if (at->kind != Kind::kMap) {
    const bool list = part == "0";
    *at = YamlNode();
    at->kind = list ? Kind::kList : Kind::kMap;
    at->place = place;
    if (list) return FindOrCreate(at, part, place, problems);
  }
  if (YamlNode* found = at->Find(part)) return found;
  at->map.push_back({{part, place}, YamlNode()});
  return &at->map.back().value;
}

// Protobuf strings must be UTF-8, and a path with replaced bytes would name another file.
bool CheckUtf8(absl::string_view text, int source, Problems* problems) {
  int line = 1, column = 1;
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8Length(text.substr(at));
    if (length == 0) {
      problems->Add(
          {source, line, column}, 2,
          absl::StrFormat("byte 0x%02x is not UTF-8; job files and the names in them are UTF-8",
                          static_cast<uint8_t>(text[at])));
      return false;
    }
    const bool ends = text[at] == '\n';
    line += ends ? 1 : 0;
    column = ends ? 1 : column + 1;
    at += length;
  }
  return true;
}

}  // namespace

YamlNode* YamlNode::Find(absl::string_view key) {
  for (auto& [name, value] : map) {
    if (name.text == key) return &value;
  }
  return nullptr;
}

std::string KindName(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return "nothing";
    case YamlNode::Kind::kMap: return "a block";
    case YamlNode::Kind::kList: return "a list";
    case YamlNode::Kind::kScalar: return absl::StrCat("\"", node.text, "\"");
  }
  return "";
}

YamlNode ParseYaml(absl::string_view text, int source, Problems* problems) {
  if (!CheckUtf8(text, source, problems)) return YamlNode();

  std::istringstream stream{std::string(text)};
  TreeBuilder builder(source, problems);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    YamlNode root = builder.TakeRoot();
    TreeBuilder second(source, problems);
    if (parser.HandleNextDocument(second))
      problems->Add(second.TakeRoot().place, 2,
                    "the file has a second document; only one is allowed");
    return root;
  } catch (const YAML::Exception& error) {
    problems->Add({source, error.mark.line + 1, error.mark.column + 1}, 1,
                  absl::StrCat("not YAML: ", error.msg));
  } catch (const TooDeep&) {
  }
  return YamlNode();
}

void ApplySet(absl::string_view set, int source, YamlNode* root, Problems* problems) {
  const Place place{source, 1, 1};
  const std::vector<std::string> halves = absl::StrSplit(set, absl::MaxSplits('=', 1));
  const std::vector<std::string> parts = absl::StrSplit(halves[0], '.');
  if (halves.size() != 2 || halves[0].empty() || absl::c_linear_search(parts, "")) {
    problems->Add(place, 14,
                  "want KEY=VALUE, as in trainer.optimizer.lr=1e-3 or data.train.0.path=FILE");
    return;
  }

  YamlNode value = ParseYaml(halves[1], source, problems);
  YamlNode* at = root;
  for (const std::string& part : parts) {
    at = FindOrCreate(at, part, place, problems);
    if (at == nullptr) return;
  }
  *at = std::move(value);
  at->place = place;
}

}  // namespace sluice::config
