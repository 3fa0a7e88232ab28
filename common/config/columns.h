#pragma once

#include <map>
#include <string>

namespace sluice::job::v1 {
class DataSource;
class Generator;
}  // namespace sluice::job::v1

namespace sluice {
struct GeneratorSpec;

// Where the rows of a source come from, as ReadDataset() takes it: its path, or its generator.
std::string PathOf(const job::v1::DataSource& source);

// Maps each field of a data row to the column of the file that holds it. The pairs come from
// `fields`; the keys `prompt` and `answer` give the columns of these two fields.
std::map<std::string, std::string> ColumnsOf(const job::v1::DataSource& source);

// The settings of a generator, which CheckGenerator() has not seen yet.
GeneratorSpec GeneratorOf(const job::v1::Generator& generator);

}  // namespace sluice
