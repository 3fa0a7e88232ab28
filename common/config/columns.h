#pragma once

#include <map>
#include <string>

namespace sluice::job::v1 {
class DataSource;
}  // namespace sluice::job::v1

namespace sluice {

// Maps each field of a data row to the column of the file that holds it. The pairs come from
// `fields`; the keys `prompt` and `answer` give the columns of these two fields.
std::map<std::string, std::string> ColumnsOf(const job::v1::DataSource& source);

}  // namespace sluice
