#include "common/data/columnar/value.h"

#include <arrow/util/float16.h>
#include <arrow/util/utf8.h>

#include <cmath>
#include <string_view>

namespace sluice::columnar {
namespace {

using nlohmann::json;

arrow::Status Take(int64_t bytes, int64_t* room) {
  *room -= bytes;
  return *room >= 0 ? arrow::Status::OK()
                    : arrow::Status::Invalid("a value takes more than ", kMostRowBytes, " bytes");
}

arrow::Result<json> Text(std::string_view text, int64_t* room) {
  ARROW_RETURN_NOT_OK(Take(static_cast<int64_t>(text.size()), room));
  if (!arrow::util::ValidateUTF8(text)) return arrow::Status::Invalid("a text is not UTF-8");
  return json(std::string(text));
}

arrow::Result<json> Number(double value) {
  if (!std::isfinite(value)) return arrow::Status::Invalid("a number is not finite");
  return json(value);
}

// The elements [begin, begin + count) of `values`.
arrow::Result<json> ListOf(const arrow::Array& values, int64_t begin, int64_t count,
                           int64_t* room) {
  json list = json::array();
  for (int64_t i = begin; i < begin + count; ++i) {
    ARROW_ASSIGN_OR_RAISE(json value, ValueAt(values, i, room));
    list.push_back(std::move(value));
  }
  return list;
}

template <typename List>
arrow::Result<json> ListAt(const arrow::Array& array, int64_t i, int64_t* room) {
  const auto& list = static_cast<const List&>(array);
  return ListOf(*list.values(), list.value_offset(i), list.value_length(i), room);
}

template <typename Array>
auto At(const arrow::Array& array, int64_t i) {
  return static_cast<const Array&>(array).Value(i);
}
template <typename Array>
std::string_view ViewAt(const arrow::Array& array, int64_t i) {
  return static_cast<const Array&>(array).GetView(i);
}

arrow::Result<json> StructAt(const arrow::Array& array, int64_t i, int64_t* room) {
  const auto& row = static_cast<const arrow::StructArray&>(array);
  json object = json::object();
  for (int field = 0; field < row.num_fields(); ++field) {
    ARROW_ASSIGN_OR_RAISE(object[row.type()->field(field)->name()],
                          ValueAt(*row.field(field), i, room));
  }
  return object;
}

// A map from texts is an object; another one is a list of pairs.
arrow::Result<json> MapAt(const arrow::Array& array, int64_t i, int64_t* room) {
  const auto& map = static_cast<const arrow::MapArray&>(array);
  const int64_t begin = map.value_offset(i), count = map.value_length(i);
  ARROW_ASSIGN_OR_RAISE(const json keys, ListOf(*map.keys(), begin, count, room));
  ARROW_ASSIGN_OR_RAISE(const json items, ListOf(*map.items(), begin, count, room));
  const bool texts = map.map_type()->key_type()->id() == arrow::Type::STRING;
  json out = texts ? json::object() : json::array();
  for (size_t at = 0; at < keys.size(); ++at) {
    if (texts) out[keys[at].get<std::string>()] = items[at];
    else out.push_back({keys[at], items[at]});
  }
  return out;
}

}  // namespace

arrow::Result<json> ValueAt(const arrow::Array& array, int64_t i, int64_t* room) {
  ARROW_RETURN_NOT_OK(Take(8, room));
  if (array.IsNull(i)) return json();
  using arrow::Type;
  switch (array.type_id()) {
    case Type::NA: return json();
    case Type::BOOL: return json(At<arrow::BooleanArray>(array, i));
    case Type::INT8: return json(At<arrow::Int8Array>(array, i));
    case Type::INT16: return json(At<arrow::Int16Array>(array, i));
    case Type::INT32: return json(At<arrow::Int32Array>(array, i));
    case Type::INT64: return json(At<arrow::Int64Array>(array, i));
    case Type::UINT8: return json(At<arrow::UInt8Array>(array, i));
    case Type::UINT16: return json(At<arrow::UInt16Array>(array, i));
    case Type::UINT32: return json(At<arrow::UInt32Array>(array, i));
    case Type::UINT64: return json(At<arrow::UInt64Array>(array, i));
    case Type::HALF_FLOAT:
      return Number(arrow::util::Float16::FromBits(At<arrow::HalfFloatArray>(array, i)).ToDouble());
    case Type::FLOAT: return Number(At<arrow::FloatArray>(array, i));
    case Type::DOUBLE: return Number(At<arrow::DoubleArray>(array, i));
    case Type::STRING: return Text(ViewAt<arrow::StringArray>(array, i), room);
    case Type::LARGE_STRING: return Text(ViewAt<arrow::LargeStringArray>(array, i), room);
    case Type::STRING_VIEW: return Text(ViewAt<arrow::StringViewArray>(array, i), room);
    case Type::LIST: return ListAt<arrow::ListArray>(array, i, room);
    case Type::LARGE_LIST: return ListAt<arrow::LargeListArray>(array, i, room);
    case Type::FIXED_SIZE_LIST: return ListAt<arrow::FixedSizeListArray>(array, i, room);
    case Type::LIST_VIEW: return ListAt<arrow::ListViewArray>(array, i, room);
    case Type::LARGE_LIST_VIEW: return ListAt<arrow::LargeListViewArray>(array, i, room);
    case Type::MAP: return MapAt(array, i, room);
    case Type::STRUCT: return StructAt(array, i, room);
    case Type::DICTIONARY: {
      const auto& encoded = static_cast<const arrow::DictionaryArray&>(array);
      return ValueAt(*encoded.dictionary(), encoded.GetValueIndex(i), room);
    }
    case Type::EXTENSION:
      return ValueAt(*static_cast<const arrow::ExtensionArray&>(array).storage(), i, room);
    case Type::DATE32:
    case Type::DATE64:
    case Type::TIMESTAMP:
    case Type::TIME32:
    case Type::TIME64:
    case Type::DECIMAL32:
    case Type::DECIMAL64:
    case Type::DECIMAL128:
    case Type::DECIMAL256: {
      ARROW_ASSIGN_OR_RAISE(const auto scalar, array.GetScalar(i));
      return Text(scalar->ToString(), room);
    }
    default:
      return arrow::Status::Invalid("its type ", array.type()->ToString(), " has no form in JSON");
  }
}

}  // namespace sluice::columnar
