#include "services/queue/row_sources.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data/dataset.h"
#include "common/data/generator.h"
#include "common/log/log.h"
#include "nlohmann/json.hpp"

namespace sluice::queue {
namespace {

class Datasets : public RowSource {
 public:
  uint64_t rows(uint32_t source) const override { return sets_[source].rows(); }
  std::string json(uint32_t source, uint64_t index) const override {
    return std::string(sets_[source].json(index));
  }
  int64_t level(uint32_t source, uint64_t index) const override { return levels_[source][index]; }
  void Add(Dataset set, std::vector<int64_t> levels) {
    sets_.push_back(std::move(set));
    levels_.push_back(std::move(levels));
  }

 private:
  std::vector<Dataset> sets_;
  std::vector<std::vector<int64_t>> levels_;  // Those of a source's rows, or none.
};

// The levels of a source's rows, for the sampler levels.
absl::StatusOr<std::vector<int64_t>> ReadLevels(const SourceSpec& source, const Dataset& set) {
  std::vector<int64_t> levels;
  for (uint64_t i = 0; i < set.rows(); ++i) {
    const nlohmann::json row = nlohmann::json::parse(set.json(i), nullptr, false);
    const auto level = row.find("level");
    if (level == row.end() || !level->is_number_integer()) {
      return ErrorWith(
          absl::StatusCode::kInvalidArgument,
          {.reason = "NO_LEVEL",
           .hint = "name the column with the levels in data.train.N.fields, as in {level: "
                   "difficulty}, or set data.order.sampler: uniform"},
          absl::StrCat("data.train ", source.name, ": row ", i, " of ", source.path, " has ",
                       level == row.end() ? "no level" : absl::StrCat("the level ", level->dump()),
                       ", but data.order.sampler is levels, which needs a whole number"));
    }
    levels.push_back(level->get<int64_t>());
  }
  return levels;
}

// The state of the sampler adaptive has a part for each row.
absl::Status CheckAdaptiveRows(uint64_t rows) {
  if (rows <= kMostAdaptiveRows) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "TOO_MANY_ROWS",
                    .hint = "set data.order.sampler: uniform, or train on fewer rows"},
                   absl::StrCat("data.train has ", rows,
                                " rows, but data.order.sampler is adaptive, which remembers each "
                                "row; the limit is ",
                                kMostAdaptiveRows));
}

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
  uint64_t rows = 0;
  for (const SourceSpec& source : spec.sources) {
    SLUICE_ASSIGN_OR_RETURN(Dataset set, ReadDataset({.name = source.name,
                                                      .path = source.path,
                                                      .fields = source.fields,
                                                      .skip_bad_rows = spec.skip_bad_rows}));
    if (set.skipped() > 0) ReportSkippedRows(job_name, source, set, alarm);
    rows += set.rows();
    std::vector<int64_t> levels;
    if (spec.sampler == Sampler::kLevels) {
      SLUICE_ASSIGN_OR_RETURN(levels, ReadLevels(source, set));
    }
    sets->Add(std::move(set), std::move(levels));
  }
  if (spec.sampler == Sampler::kAdaptive) SLUICE_RETURN_IF_ERROR(CheckAdaptiveRows(rows));
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
