#include "common/tokenizer/component.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {
constexpr size_t kMaxList = 1024;

std::string ShowJson(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = absl::StrCat(Utf8Lossy(text.substr(0, 57)), "...");
  return text;
}
}  // namespace

std::string Component::PathOf(absl::string_view key) const {
  return absl::StrCat(path_, path_.empty() ? "" : ".", key);
}

std::string Component::type() const {
  const auto it = object_.find("type");
  return it != object_.end() && it->is_string() ? it->get<std::string>() : "";
}

bool Component::Has(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && !it->is_null();
}

absl::Status Component::CheckKeys(std::initializer_list<const char*> known) const {
  for (const auto& [key, value] : object_.items()) {
    const auto same = [&key = key](const char* name) { return key == name; };
    if (key != "type" && !value.is_null() && std::none_of(known.begin(), known.end(), same)) {
      return absl::UnimplementedError(
          absl::StrCat(PathOf(key), " = ", ShowJson(value), ": this key is not supported here"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Component::Bool(const char* key) const {
  if (!Has(key))
    return absl::InvalidArgumentError(absl::StrCat(PathOf(key), " is missing; want true or false"));
  if (!object_[key].is_boolean())
    return absl::InvalidArgumentError(
        absl::StrCat(PathOf(key), " is ", ShowJson(object_[key]), "; want true or false"));
  return object_[key].get<bool>();
}

absl::StatusOr<int64_t> Component::Int(const char* key, int64_t least, int64_t most) const {
  if (!Has(key))
    return absl::InvalidArgumentError(
        absl::StrCat(PathOf(key), " is missing; want a whole number"));
  const nlohmann::json& value = object_[key];
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX) &&
                    value.get<int64_t>() >= least && value.get<int64_t>() <= most;
  if (!fits)
    return absl::InvalidArgumentError(absl::StrCat(PathOf(key), " is ", ShowJson(value),
                                                   "; want a whole number in [", least, ", ", most,
                                                   "]"));
  return value.get<int64_t>();
}

absl::StatusOr<std::string> Component::String(const char* key) const {
  if (!Has(key))
    return absl::InvalidArgumentError(absl::StrCat(PathOf(key), " is missing; want a string"));
  if (!object_[key].is_string())
    return absl::InvalidArgumentError(
        absl::StrCat(PathOf(key), " is ", ShowJson(object_[key]), "; want a string"));
  return object_[key].get<std::string>();
}

absl::StatusOr<std::string> Component::String(const char* key, const char* absent) const {
  if (!Has(key)) return absent;
  return String(key);
}

absl::StatusOr<std::string> Component::Character(const char* key) const {
  SLUICE_ASSIGN_OR_RETURN(std::string text, String(key));
  if (text.empty() || Utf8Length(text) != text.size())
    return absl::InvalidArgumentError(
        absl::StrCat(PathOf(key), " is \"", text, "\"; want one character"));
  return text;
}

absl::StatusOr<Component> Component::Object(const char* key) const {
  if (!Has(key) || !object_[key].is_object())
    return absl::InvalidArgumentError(absl::StrCat(PathOf(key), " is missing or not an object"));
  return Component(object_[key], PathOf(key));
}

absl::StatusOr<std::vector<Component>> Component::Objects(const char* key) const {
  if (!Has(key) || !object_[key].is_array())
    return absl::InvalidArgumentError(absl::StrCat(PathOf(key), " is missing or not a list"));
  const nlohmann::json& list = object_[key];
  if (list.size() > kMaxList)
    return absl::InvalidArgumentError(
        absl::StrCat(PathOf(key), " has ", list.size(), " entries; the limit is ", kMaxList));
  std::vector<Component> parts;
  for (size_t i = 0; i < list.size(); ++i) {
    std::string path = absl::StrCat(PathOf(key), "[", i, "]");
    if (!list[i].is_object())
      return absl::InvalidArgumentError(absl::StrCat(path, " is not an object"));
    parts.emplace_back(list[i], std::move(path));
  }
  return parts;
}

absl::StatusOr<std::vector<Component>> Component::Flatten(const char* parts) const {
  std::vector<Component> all;
  if (type() != "Sequence") {
    all.push_back(*this);
    return all;
  }
  SLUICE_RETURN_IF_ERROR(CheckKeys({parts}));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Component> links, Objects(parts));
  for (const Component& link : links) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<Component> inner, link.Flatten(parts));
    for (const Component& part : inner) all.push_back(part);
  }
  return all;
}

absl::Status Component::Invalid(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}
absl::Status Component::Unsupported(absl::string_view what) const {
  return absl::UnimplementedError(absl::StrCat(path_, ": ", what, " is not supported"));
}

}  // namespace sluice
