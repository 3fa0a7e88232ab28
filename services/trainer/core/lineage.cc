#include "services/trainer/core/lineage.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace sluice::trainer {
namespace {

constexpr size_t kMaxLineBytes = 64 << 20;  // A line is far shorter, even with many masked runs.

template <typename T>
void AppendLittleEndian(T value, std::string& out) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
}

absl::StatusOr<LineageEntry> LineageFromJson(const nlohmann::json& json) {
  LineageEntry entry;
  entry.k = json.at("k").get<int64_t>();
  SLUICE_ASSIGN_OR_RETURN(const std::string group, FromHex(json.at("group").get<std::string>()));
  SLUICE_ASSIGN_OR_RETURN(entry.group, Id16::FromBytes(group));
  entry.member = json.at("member").get<uint32_t>();
  entry.attempt = json.at("attempt").get<uint32_t>();
  entry.crc32c = json.at("crc").get<uint32_t>();
  if (json.contains("masked")) {
    for (const nlohmann::json& run : json.at("masked")) {
      entry.masked.push_back({run.at(0).get<uint64_t>(), run.at(1).get<uint64_t>()});
    }
  }
  if (json.contains("skipped")) entry.skipped = json.at("skipped").get<std::string>();
  return entry;
}

}  // namespace

LineageEntry MakeLineageEntry(int64_t k, const Id16& group, const Trajectory& trajectory,
                              absl::string_view skipped) {
  return {k,
          group,
          trajectory.member,
          trajectory.attempt,
          trajectory.crc32c,
          trajectory.masked,
          std::string(skipped)};
}

std::string LineageLine(const LineageEntry& entry) {
  std::string line = absl::StrCat("{\"k\":", entry.k, ",\"group\":\"", entry.group.hex(),
                                  "\",\"member\":", entry.member, ",\"attempt\":", entry.attempt,
                                  ",\"crc\":", entry.crc32c);
  if (!entry.masked.empty()) {
    const char* separator = ",\"masked\":[";
    for (const TokenRun& run : entry.masked) {
      absl::StrAppend(&line, separator, "[", run.first, ",", run.count, "]");
      separator = ",";
    }
    line += "]";
  }
  if (!entry.skipped.empty())
    absl::StrAppend(&line, ",\"skipped\":", nlohmann::json(entry.skipped).dump());
  line += "}\n";
  return line;
}

absl::StatusOr<LineageEntry> ParseLineageLine(absl::string_view line) {
  try {
    return LineageFromJson(nlohmann::json::parse(line));
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("this is no line of a lineage: ", e.what()));
  }
}

std::string CanonicalBytes(absl::Span<const LineageEntry> batch) {
  std::string bytes;
  bytes.reserve(batch.size() * 32);
  for (const LineageEntry& entry : batch) {
    absl::StrAppend(&bytes, entry.group.view());
    AppendLittleEndian(entry.member, bytes);
    AppendLittleEndian(entry.attempt, bytes);
    AppendLittleEndian(entry.crc32c, bytes);
    AppendLittleEndian(static_cast<uint32_t>(entry.masked.size()), bytes);
    for (const TokenRun& run : entry.masked) {
      AppendLittleEndian(run.first, bytes);
      AppendLittleEndian(run.count, bytes);
    }
  }
  return bytes;
}

std::string FirstLedgerHash() { return std::string(32, '\0'); }

std::string NextLedgerHash(absl::string_view hash, int64_t k, absl::string_view canonical) {
  std::string bytes(hash);
  AppendLittleEndian(k, bytes);
  absl::StrAppend(&bytes, canonical);
  return Sha256(bytes);
}

LineageCheck::LineageCheck(int64_t version) : summary_{version, 0, FirstLedgerHash()} {}

void LineageCheck::CloseStepsBelow(int64_t k) {
  for (; k_ < k; ++k_, batch_.clear()) {
    summary_.hash = NextLedgerHash(summary_.hash, k_, CanonicalBytes(batch_));
  }
}

absl::Status LineageCheck::AddLine(absl::string_view line) {
  ++line_number_;
  if (line.empty()) return absl::OkStatus();
  const std::string where = absl::StrCat("line ", line_number_, ": ");
  absl::StatusOr<LineageEntry> entry = ParseLineageLine(line);
  if (!entry.ok()) return absl::DataLossError(absl::StrCat(where, entry.status().message()));
  if (entry->k < k_ || entry->k >= summary_.version) {
    return absl::DataLossError(
        absl::StrCat(where, "step ", entry->k, " is not in ", k_, "..", summary_.version - 1));
  }
  if (!seen_.emplace(entry->group, entry->member).second) {
    return absl::DataLossError(absl::StrCat(where, "group ", entry->group.hex(), " member ",
                                            entry->member, " was trained on before"));
  }

  CloseStepsBelow(entry->k);
  batch_.push_back(*std::move(entry));
  ++summary_.trajectories;
  return absl::OkStatus();
}

absl::Status LineageCheck::Add(absl::string_view piece) {
  for (size_t end = piece.find('\n'); end != piece.npos; end = piece.find('\n')) {
    absl::StrAppend(&rest_, piece.substr(0, end));
    piece.remove_prefix(end + 1);
    SLUICE_RETURN_IF_ERROR(AddLine(rest_));
    rest_.clear();
  }
  absl::StrAppend(&rest_, piece);
  if (rest_.size() > kMaxLineBytes) {
    return absl::DataLossError(
        absl::StrCat("line ", line_number_ + 1, " has more than ", kMaxLineBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LineageSummary> LineageCheck::Finish() {
  if (!rest_.empty()) {
    return absl::DataLossError(
        absl::StrCat("line ", line_number_ + 1, " has no end: the file was cut"));
  }
  CloseStepsBelow(summary_.version);
  return summary_;
}

absl::StatusOr<LineageSummary> CheckLineage(absl::string_view text, int64_t version) {
  LineageCheck check(version);
  SLUICE_RETURN_IF_ERROR(check.Add(text));
  return check.Finish();
}

}  // namespace sluice::trainer
