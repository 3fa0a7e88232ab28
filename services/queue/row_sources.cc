#include "services/queue/row_sources.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data/dataset.h"
#include "common/data/generator.h"
#include "common/log/log.h"

namespace sluice::queue {
namespace {

class Datasets : public RowSource {
 public:
  uint64_t rows(uint32_t source) const override { return sets_[source].rows(); }
  std::string json(uint32_t source, uint64_t index) const override {
    return std::string(sets_[source].json(index));
  }
  void Add(Dataset set) { sets_.push_back(std::move(set)); }

 private:
  std::vector<Dataset> sets_;
};

void ReportSkippedRows(const std::string& job_name, const SourceSpec& source, const Dataset& set,
                       const AlarmHandler& alarm) {
  log::Warning("rows_skipped", {{"job_id", job_name},
                                {"source", source.name},
                                {"rows", set.skipped()},
                                {"first", set.first_skipped()}});
  if (!alarm) return;
  alarm({"rows_skipped",
         absl::StrCat(set.skipped(), " of ", set.skipped() + set.rows(), " rows of data source ",
                      source.name, " are skipped, the first ", set.first_skipped())});
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RowSource>> ReadRowSources(const std::string& job_name,
                                                                const Spec& spec,
                                                                const AlarmHandler& alarm) {
  auto sets = std::make_shared<Datasets>();
  for (const SourceSpec& source : spec.sources) {
    SLUICE_ASSIGN_OR_RETURN(Dataset set, ReadDataset({.name = source.name,
                                                      .path = source.path,
                                                      .fields = source.fields,
                                                      .skip_bad_rows = spec.skip_bad_rows}));
    if (set.skipped() > 0) ReportSkippedRows(job_name, source, set, alarm);
    sets->Add(std::move(set));
  }
  return sets;
}

absl::StatusOr<std::shared_ptr<const RowSource>> ReadRowSourcesAgain(const JobHeader& header) {
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const RowSource> rows,
                          ReadRowSources(header.name, header.spec, nullptr));
  for (uint32_t s = 0; s < header.sources.size(); ++s) {
    if (DigestOf(*rows, s) == header.sources[s]) continue;
    const SourceSpec& source = header.spec.sources[s];
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "DATA_CHANGED",
         .catalogue = "SLUICE-QUEUE-0008",
         .hint =
             IsGeneratorText(source.path)
                 ? "restart the queue with the build with which the job began, or delete the job"
                 : "put the file back as it was and restart the queue, or delete the job"},
        absl::StrCat("data.train ", source.name, ": ", source.path,
                     " holds other rows than when the job began"));
  }
  return rows;
}

}  // namespace sluice::queue
