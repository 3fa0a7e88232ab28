#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config/problems.h"

namespace sluice::config {

// A parsed YAML value that knows its place. Only what job files may use: no anchors, aliases, tags,
// duplicate keys, second documents; see ParseYaml.
struct YamlNode {
  enum class Kind { kNull, kScalar, kMap, kList };
  struct Key {
    std::string text;
    Place place;
  };

  Kind kind = Kind::kNull;
  Place place;
  std::string text;                           // Of a scalar.
  bool quoted = false;                        // A scalar in quotes is text whatever it looks like.
  std::vector<std::pair<Key, YamlNode>> map;  // In the order of the file.
  std::vector<YamlNode> list;

  // The value of a key, or null.
  YamlNode* Find(absl::string_view key);
  const YamlNode* Find(absl::string_view key) const {
    return const_cast<YamlNode*>(this)->Find(key);
  }
};

// Parses one document. What job files may not use is a problem each (0002, 0004); text that is no
// YAML is one (0001) and gives a null node. `source` marks the places.
YamlNode ParseYaml(absl::string_view text, int source, Problems* problems);

// Puts `key=value` of --set over the tree: "data.train.0.path=FILE". Blocks on the way are made; a
// list place must be there, or be the next.
void ApplySet(absl::string_view set, int source, YamlNode* root, Problems* problems);

}  // namespace sluice::config
