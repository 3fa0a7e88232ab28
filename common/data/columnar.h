#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

enum class ColumnarFormat { kParquet, kArrow };

// What a file of columns is asked for.
struct ColumnarQuery {
  // The open file, of which the call takes ownership. It is not opened by its name, because
  // whoever opens it checks that it may be read.
  int fd = -1;
  ColumnarFormat format = ColumnarFormat::kParquet;
  // Names of the columns that are wanted; those that the file lacks are left out. Others are not
  // decoded.
  std::vector<std::string> columns;
  // Gets the names of all columns of the file, before any row. May be empty.
  std::function<void(std::vector<std::string> names)> names;
  // Gets each row, an object of the wanted columns. Returns whether it wants another one.
  std::function<bool(const nlohmann::json& row)> take;
};

// Reads the rows of a file of Apache Parquet or Arrow. The libraries for that take 65 MB, so they
// are in a module of their own (libsluice_columnar.so, beside the program or in lib/sluice beside
// its folder), which the first call loads.
// FAILED_PRECONDITION UNSUPPORTED: this build has no such module.
// INVALID_ARGUMENT: the file is not of this format, is damaged, nests lists and objects too deeply
// (the libraries have limits of 64 to 100 levels), or a wanted column has a type that JSON has no
// form for; the message names it. So is one that needs more than 2 GiB at a time to be
// decoded, or has a value of more than 64 MiB.
absl::Status ReadColumnar(const ColumnarQuery& query);

// The function of the module: returns what is wrong, or an empty string.
inline constexpr char kColumnarFunction[] = "SluiceReadColumnar";
using ColumnarFunction = void (*)(const ColumnarQuery& query, std::string* wrong);

}  // namespace sluice
