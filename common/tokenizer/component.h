#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// One JSON object of a tokenizer.json, with its place in the file, such as
// `pre_tokenizer.pretokenizers[1]`; "" is the whole file. Every error names the place.
// INVALID_ARGUMENT: a value is missing or of the wrong type.
// UNIMPLEMENTED: this reader does not support it.
//
// Borrows the object.
class Component {
 public:
  Component(const nlohmann::json& object, std::string path)
      : object_(object), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string PathOf(absl::string_view key) const;  // The place of a key.
  const nlohmann::json& json() const { return object_; }
  std::string type() const;         // "" if there is none.
  bool Has(const char* key) const;  // Present and not null.

  // Refuses the first key that is neither `type` nor in `known`, unless it is null.
  absl::Status CheckKeys(std::initializer_list<const char*> known) const;
  absl::StatusOr<bool> Bool(const char* key) const;
  absl::StatusOr<bool> Bool(const char* key, bool absent) const {
    return Has(key) ? Bool(key) : absl::StatusOr<bool>(absent);
  }
  absl::StatusOr<int64_t> Int(const char* key, int64_t least, int64_t most) const;
  absl::StatusOr<std::string> String(const char* key) const;
  absl::StatusOr<std::string> String(const char* key, const char* absent) const;
  absl::StatusOr<std::string> Character(const char* key) const;  // A string of one character.
  absl::StatusOr<Component> Object(const char* key) const;
  // Returns a list of objects, at most 1024.
  absl::StatusOr<std::vector<Component>> Objects(const char* key) const;

  // Returns the parts of a chain in order: this component, or if it is a `Sequence`, those in its
  // list `parts`, which may be sequences themselves.
  absl::StatusOr<std::vector<Component>> Flatten(const char* parts) const;

  absl::Status Invalid(absl::string_view what) const;  // Gives "<path>: what".
  absl::Status Unsupported(absl::string_view what) const;

 private:
  const nlohmann::json& object_;
  std::string path_;
};

}  // namespace sluice
