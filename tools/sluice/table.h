#pragma once

#include <string>
#include <vector>

namespace sluice::job::v1 {
class JobResult;
}

namespace sluice::cli {

// Formats rows of cells in aligned columns. The first row holds the column names.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// Formats a job's result for people. With `utf8` the curve is drawn with block characters.
std::string ResultTable(const job::v1::JobResult& result, bool utf8);

}  // namespace sluice::cli
