#include "common/config/columns.h"

#include "common/data/generator.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice {

std::string PathOf(const job::v1::DataSource& source) {
  return source.has_generator() ? GeneratorText(GeneratorOf(source.generator())) : source.path();
}

GeneratorSpec GeneratorOf(const job::v1::Generator& generator) {
  return {.kind = generator.kind(),
          .rows = generator.rows(),
          .levels = {generator.levels().begin(), generator.levels().end()},
          .seed = generator.seed()};
}

std::map<std::string, std::string> ColumnsOf(const job::v1::DataSource& source) {
  std::map<std::string, std::string> columns(source.fields().begin(), source.fields().end());
  if (!source.prompt().empty()) columns["prompt"] = source.prompt();
  if (!source.answer().empty()) columns["answer"] = source.answer();
  return columns;
}

}  // namespace sluice
