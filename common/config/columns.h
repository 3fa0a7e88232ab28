#pragma once

#include <map>
#include <string>

namespace sluice::job::v1 {
class DataSource;
}  // namespace sluice::job::v1

namespace sluice {

// Which column of the file each field of a row comes from, by the field's name: what `fields` maps,
// and `prompt` and `answer` by the keys of their own.
std::map<std::string, std::string> ColumnsOf(const job::v1::DataSource& source);

}  // namespace sluice
