#include "services/reward/data_check.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/columns.h"
#include "common/data/dataset.h"
#include "common/log/log.h"
#include "nlohmann/json.hpp"
#include "sluice/job/v1/job.pb.h"

namespace sluice::reward {
namespace {

// Checks a row. The error also names the column that `answer` comes from, if that has another name.
absl::Status CheckRow(const Scorer& scorer, const nlohmann::json& row,
                      const Dataset::Options& source) {
  const absl::Status status = scorer.CheckRow(row, source.name);
  const auto answer = source.fields.find("answer");
  if (status.ok() || answer == source.fields.end() || answer->second == "answer") return status;
  return absl::InvalidArgumentError(
      absl::StrCat(status.message(), " (`answer` is column \"", answer->second, "\")"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckData(const job::v1::JobSpec& spec,
                                                   const Scorer& scorer) {
  std::vector<std::string> remarks;
  for (const job::v1::DataSource& source : spec.data().train()) {
    Dataset::Options options{.name = source.name(),
                             .path = PathOf(source),
                             .fields = ColumnsOf(source),
                             .skip_bad_rows = spec.data().order().on_bad_row() == "skip"};
    // check_scorable becomes a part of `options`, so it works with a copy.
    const Dataset::Options source_options = options;
    options.check_scorable = [&](const nlohmann::json& row) {
      return CheckRow(scorer, row, source_options);
    };

    const absl::StatusOr<Dataset> data = ReadDataset(options);
    if (ReasonOf(data.status()) == "UNSCORABLE") return data.status();
    if (!data.ok()) {
      log::Info("data_not_checked", {{"job_id", spec.name()}, {"error", data.status()}});
      continue;
    }

    if (data->set_aside() == 0) continue;
    remarks.push_back(absl::StrCat(
        "data source ", source.name(), ": answers to ", data->set_aside(), " of ",
        data->rows() + data->set_aside(),
        " rows cannot be scored; each of these rows is set aside once it is drawn; the first: ",
        data->first_set_aside()));
  }
  return remarks;
}

}  // namespace sluice::reward
