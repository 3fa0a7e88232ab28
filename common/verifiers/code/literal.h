#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace sluice::code {

// Results of Python code as JSON, in the form that the sandbox's driver writes them: None, True and
// texts as in JSON, {"int": "12"}, {"float": "1.5"}, [..] for lists and tuples, {"set": [..]},
// {"dict": [[key, value], ..]}, {"complex": [re, im]}, {"bytes": "hex"}.

// Parses a Python literal, such as [1, 'a', (2.5, None)] or set((1, 2)). Returns nothing for any
// other text, and for one that is nested more than 100 levels deep.
std::optional<nlohmann::json> ParseLiteral(absl::string_view text);

// Parses the literal at the start of *text, after white space, and removes it from there.
std::optional<nlohmann::json> ConsumeLiteral(absl::string_view* text);

// The form of a value that a JSON file gives.
nlohmann::json FromJson(const nlohmann::json& value);

// Whether Python would call the values equal, except that a tuple equals a list with the same
// elements, True is not 1, and numbers may differ by float_tol (absolutely, or relative to the
// gold) if one of them is a float.
bool Equal(const nlohmann::json& value, const nlohmann::json& gold, double float_tol);

// Whether Python takes the value for true.
bool IsTruthy(const nlohmann::json& value);

// The value as a floating-point number, if it is a number.
std::optional<double> NumberOf(const nlohmann::json& value);

}  // namespace sluice::code
