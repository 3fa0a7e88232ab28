#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config/problems.h"

namespace sluice::config {

// A parsed YAML value with its place. It holds only what job files may use: no anchors, aliases,
// tags, duplicate keys or second documents (see ParseYaml).
struct YamlNode {
  enum class Kind { kNull, kScalar, kMap, kList };
  struct Key {
    std::string text;
    Place place;
  };

  struct Entry;  // A key of a block, with its value.

  Kind kind = Kind::kNull;
  Place place;
  std::string text;        // Of a scalar; empty otherwise.
  bool quoted = false;     // A scalar in quotes is always text.
  std::vector<Entry> map;  // In the order of the file.
  std::vector<YamlNode> list;

  // Returns the value of a key, or null.
  YamlNode* Find(absl::string_view key);
  const YamlNode* Find(absl::string_view key) const {
    return const_cast<YamlNode*>(this)->Find(key);
  }
};

struct YamlNode::Entry {
  Key key;
  YamlNode value;
};

// Names a node for a message: nothing, a block, a list, or the scalar in quotes.
std::string KindName(const YamlNode& node);

// Parses one document. Whatever job files may not use is reported (0002, 0004; job_file.h lists
// these numbers). Text that is not YAML is reported (0001) and gives a null node. `source` becomes
// Place::source of all places.
YamlNode ParseYaml(absl::string_view text, int source, Problems* problems);

// Applies a --set `key=value`, such as "data.train.0.path=FILE", to the tree. Missing blocks on the
// way are created. A list index must exist or be the next one. Mistakes are reported (0014).
void ApplySet(absl::string_view set, int source, YamlNode* root, Problems* problems);

}  // namespace sluice::config
