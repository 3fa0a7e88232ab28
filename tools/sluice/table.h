#pragma once

#include <string>
#include <vector>

namespace sluice::job::v1 {
class JobResult;
}

namespace sluice::cli {

// Rows of cells, the first row being the heads, in aligned columns.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// A job's result as people read it; `utf8`: its curve is drawn with block characters.
std::string ResultTable(const job::v1::JobResult& result, bool utf8);

}  // namespace sluice::cli
