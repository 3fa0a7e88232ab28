#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// 1 if the answer is a JSON text that a JSON Schema (draft 2020-12) accepts.
//
//   schema  the schema, an object; without it, each row has one in its field `schema`
//
// The JSON is the last fenced block (```json), else the last <answer>, else the whole text. It must
// be strict: no comments, no text around it, and no key twice in an object.
//
// Keywords: type, enum, const; properties, required, additionalProperties, minProperties,
// maxProperties; items, prefixItems, minItems, maxItems, uniqueItems; minLength, maxLength,
// pattern (RE2); minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf; anyOf, allOf,
// oneOf, not; and $ref to a place within the schema (#/$defs/NAME). A schema with another keyword
// is refused, except those that only describe ($schema, $id, $comment, $defs, definitions, title,
// description, default, examples). Checking is bounded by 100,000 counted steps and a depth of
// 64; an answer beyond is the verdict `too_complex`.
absl::StatusOr<std::unique_ptr<Verifier>> MakeJsonSchema(const nlohmann::json& args);

}  // namespace sluice
