#include "common/config/columns.h"

#include "sluice/job/v1/job.pb.h"

namespace sluice {

std::map<std::string, std::string> ColumnsOf(const job::v1::DataSource& source) {
  std::map<std::string, std::string> columns(source.fields().begin(), source.fields().end());
  if (!source.prompt().empty()) columns["prompt"] = source.prompt();
  if (!source.answer().empty()) columns["answer"] = source.answer();
  return columns;
}

}  // namespace sluice
