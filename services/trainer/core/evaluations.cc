#include "services/trainer/core/evaluations.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace sluice::trainer {
namespace {

using nlohmann::json;

constexpr char kFile[] = "evaluations.jsonl";

std::string CheckpointName(int64_t number) { return absl::StrCat("step-", number); }

json EvaluationToJson(const Evaluation& evaluation) {
  return {{"incarnation", evaluation.version.incarnation},
          {"version", evaluation.version.number},
          {"state", evaluation.state},
          {"score", evaluation.score},
          {"reported", evaluation.reported},
          {"values", evaluation.values}};
}

absl::StatusOr<Evaluation> EvaluationFromJson(absl::string_view line) {
  try {
    const json object = json::parse(line);
    Evaluation evaluation;
    evaluation.version = {object.at("incarnation").get<int64_t>(),
                          object.at("version").get<int64_t>()};
    evaluation.state = object.at("state").get<std::string>();
    evaluation.score = object.at("score").get<double>();
    evaluation.reported = object.at("reported").get<int64_t>();
    evaluation.values = object.at("values").get<std::map<std::string, double>>();
    return evaluation;
  } catch (const json::exception& e) {
    return absl::DataLossError(e.what());
  }
}

}  // namespace

absl::Status EvaluationLog::Load(int64_t version) {
  all_.clear();
  reached_ = version;
  const std::string path = absl::StrCat(dir_, "/", kFile);
  if (!PathExists(path)) return Recount();
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));

  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    absl::StatusOr<Evaluation> evaluation = EvaluationFromJson(line);
    if (!evaluation.ok()) {
      all_.clear();
      (void)Recount();
      return absl::DataLossError(
          absl::StrCat(path, ", line ", number, ": ", evaluation.status().message()));
    }
    const int64_t version = evaluation->version.number;
    all_[version] = *std::move(evaluation);
  }
  return Recount();
}

const Evaluation* EvaluationLog::Find(int64_t number) const {
  const auto found = all_.find(number);
  return found == all_.end() ? nullptr : &found->second;
}

const Evaluation* EvaluationLog::Last() const {
  const auto behind = all_.upper_bound(reached_);
  return behind == all_.begin() ? nullptr : &std::prev(behind)->second;
}

absl::Status EvaluationLog::Add(Evaluation evaluation) {
  const int64_t number = evaluation.version.number;

  // Evaluations between reached_ and `number` were made before the run went back, and the run has
  // passed their versions without evaluating them again: they belong to another branch.
  if (number > reached_) all_.erase(all_.upper_bound(reached_), all_.lower_bound(number));
  reached_ = std::max(reached_, number);

  all_[number] = std::move(evaluation);
  SLUICE_RETURN_IF_ERROR(Write());
  return Recount();
}

absl::Status EvaluationLog::SetReported(int64_t number, int64_t k) {
  const auto found = all_.find(number);
  if (found == all_.end()) return absl::OkStatus();
  found->second.reported = k;
  return Write();
}

absl::Status EvaluationLog::Write() const {
  std::string text;
  for (const auto& [number, evaluation] : all_)
    absl::StrAppend(&text, EvaluationToJson(evaluation).dump(), "\n");
  return WriteFileAtomic(absl::StrCat(dir_, "/", kFile), text);
}

absl::Status EvaluationLog::Recount() {
  EvalTotals totals;
  for (const auto& [number, evaluation] : all_) {
    if (number > reached_) break;
    if (totals.versions++ == 0) totals.first = evaluation.score;
    totals.last = evaluation.score;

    // The checkpoint of the newest version may still be under way to the disk, so it counts as
    // existing.
    const std::string path = absl::StrCat(dir_, "/", CheckpointName(number));
    const bool has_checkpoint = number > 0 && (number == reached_ || PathExists(path));
    if (!has_checkpoint) continue;
    if (!totals.best_checkpoint.empty() && !IsBetter(evaluation.score, totals.best)) continue;
    totals.best = evaluation.score;
    totals.best_version = number;
    totals.best_checkpoint = path;
  }

  totals_ = std::move(totals);
  if (totals_.best_checkpoint.empty()) return RemoveLink(dir_, kBestLink);
  if (LinkedVersion(dir_, kBestLink) == totals_.best_version) return absl::OkStatus();
  return LinkCheckpoint(dir_, kBestLink, totals_.best_version);
}

absl::Status LinkCheckpoint(const std::string& dir, absl::string_view name, int64_t number) {
  const std::string link = absl::StrCat(dir, "/", name);
  const std::string temporary = absl::StrCat(dir, "/.", name, ".tmp");
  SLUICE_RETURN_IF_ERROR(RemoveTree(temporary));
  if (::symlink(CheckpointName(number).c_str(), temporary.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("making the link ", temporary));
  }

  if (::rename(temporary.c_str(), link.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("renaming ", temporary, " to ", link));
  }
  return SyncDir(dir);
}

absl::Status RemoveLink(const std::string& dir, absl::string_view name) {
  const std::string link = absl::StrCat(dir, "/", name);
  if (::unlink(link.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("removing the link ", link));
}

std::optional<int64_t> LinkedVersion(const std::string& dir, absl::string_view name) {
  std::error_code error;
  const std::string to =
      std::filesystem::read_symlink(absl::StrCat(dir, "/", name), error).string();
  absl::string_view number = to;
  int64_t version = 0;
  if (error || !absl::ConsumePrefix(&number, "step-") || !absl::SimpleAtoi(number, &version))
    return std::nullopt;
  return version;
}

std::set<std::string> LinkedCheckpoints(const std::string& dir) {
  std::set<std::string> names;
  // Read `evaluating` first: an evaluation that ends meanwhile sets `best` before it removes
  // `evaluating`, so its checkpoint is seen in one of them.
  for (const char* link : {kEvaluatingLink, kBestLink}) {
    if (const std::optional<int64_t> version = LinkedVersion(dir, link))
      names.insert(CheckpointName(*version));
  }
  return names;
}

}  // namespace sluice::trainer
