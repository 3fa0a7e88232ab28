#include "tools/sluice/data/data_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/prompt/prompt.h"
#include "tools/sluice/data/overlap.h"

namespace sluice::cli {
namespace {

using nlohmann::json;

constexpr size_t kShownWords = 160;  // Bytes of the shared words that are shown.

uint64_t Hash64(absl::string_view bytes) {
  uint64_t hash = 0;
  std::memcpy(&hash, Sha256(bytes).data(), sizeof hash);
  return hash;
}

// Adds the text of a value: of a list of messages, what they say without those of the system, which
// are the same for many tasks.
void AppendText(const json& value, std::string* text) {
  if (value.is_string()) {
    absl::StrAppend(text, value.get_ref<const std::string&>(), "\n");
    return;
  }
  const bool messages = value.is_array() && !value.empty() && value[0].is_object();
  if (!messages) {
    absl::StrAppend(text, value.dump(), "\n");
    return;
  }
  for (const json& message : value) {
    const bool system = message.is_object() && message.value("role", json()) == "system";
    if (!message.is_object() || system) continue;
    // A message, or a part of what one says.
    for (const char* const member : {"content", "text"}) {
      if (message.contains(member)) AppendText(message[member], text);
    }
  }
}

// What the row asks: the fields that its prompt is made of, without the words around them.
std::string QuestionOf(const json& row, const DataToCheck& source) {
  std::string text;
  for (const auto& [name, value] : row.items()) {
    const auto column = source.data.fields.find(name);
    const bool asked = absl::StrContains(source.format, absl::StrCat("{", name, "}")) ||
                       (column != source.data.fields.end() &&
                        absl::StrContains(source.format, absl::StrCat("{", column->second, "}")));
    if (asked) AppendText(value, &text);
  }
  if (text.empty()) AppendText(row["prompt"], &text);
  if (text.empty()) text = row["prompt"].dump();
  return text;
}

// Where a row stands, in little memory.
struct KeptPlace {
  uint32_t before = 0;  // Among Places.
  uint64_t number = 0;

  auto operator<=>(const KeptPlace&) const = default;
};

class Places {
 public:
  KeptPlace Keep(const RowPlace& place) {
    if (before_.empty() || before_.back() != place.before) before_.emplace_back(place.before);
    return {.before = static_cast<uint32_t>(before_.size() - 1), .number = place.number};
  }
  std::string Text(const KeptPlace& place) const {
    return RowPlace{before_[place.before], place.number}.ToString();
  }

 private:
  std::vector<std::string> before_;
};

class Checker {
 public:
  explicit Checker(const DataCheckOptions& options) : options_(options) {}

  absl::StatusOr<DataReport> Check() {
    report_.answers_checked = options_.check_answer != nullptr;
    report_.max_prompt = options_.max_prompt;
    report_.skip_bad_rows = options_.skip_bad_rows;
    report_.sources.resize(options_.sources.size());
    // Training rows are compared with the held-out rows, which are read first.
    for (const bool held_out : {true, false}) {
      bool any = false;
      for (size_t i = 0; i < options_.sources.size(); ++i) {
        if (options_.sources[i].held_out != held_out) continue;
        any = true;
        SLUICE_RETURN_IF_ERROR(ReadSource(static_cast<uint32_t>(i)));
      }
      if (held_out) overlap_.Finish();
      else if (any && !held_out_places_.empty()) report_.overlap = std::move(found_);
      FindDuplicates();
    }
    return std::move(report_);
  }

 private:
  // A row of the sources that were read since the last FindDuplicates().
  struct Row {
    uint64_t question = 0, answer = 0;  // Hashes.
    KeptPlace place;
    uint32_t source = 0;
  };

  void Note(RowFindings* findings, const std::function<std::string()>& sentence) const {
    if (findings->count++ < options_.show) findings->first.push_back(sentence());
  }

  absl::Status ReadSource(uint32_t index) {
    const DataToCheck& source = options_.sources[index];
    SourceReport& report = report_.sources[index];
    report.name = source.name;
    report.path = source.data.path;
    report.held_out = source.held_out;
    if (options_.renderer != nullptr) report.tokens.emplace();

    Dataset::Options data = source.data;
    data.check_prompts = true;
    data.visit_row = [&](const json& row, const std::string& text, const RowPlace& place) {
      CheckRow(row, text, place, index);
    };
    data.visit_bad_row = [&](const std::string& wrong) {
      Note(&report.bad, [&] { return wrong; });
    };
    SLUICE_RETURN_IF_ERROR(ReadDataset(data).status());
    return too_many_;
  }

  void CheckRow(const json& row, const std::string& text, const RowPlace& place, uint32_t index) {
    const DataToCheck& source = options_.sources[index];
    SourceReport& report = report_.sources[index];
    if (options_.renderer != nullptr) {
      const auto prompt = options_.renderer->Render(source.rendered_as, text);
      if (!prompt.ok()) {
        Note(&report.bad,
             [&] { return absl::StrCat(place.ToString(), ": ", prompt.status().message()); });
        return;
      }
      report.tokens->Add(prompt->tokens.size());
    }

    ++report.rows;
    if (options_.check_answer) {
      const absl::Status answer = options_.check_answer(row, source.name);
      if (!answer.ok()) {
        Note(&report.unscorable,
             [&] { return absl::StrCat(place.ToString(), ": ", answer.message()); });
      }
    }

    const std::string question = QuestionOf(row, source);
    const KeptPlace kept = places_.Keep(place);
    const auto answer = row.find("answer");
    rows_.push_back({.question = Hash64(question),
                     .answer = answer == row.end() ? 0 : Hash64(answer->dump()),
                     .place = kept,
                     .source = index});
    if (source.held_out) {
      if (too_many_.ok()) too_many_ = overlap_.Add(question);
      held_out_places_.push_back(kept);
      overlaps_.push_back(false);
    } else {
      FindOverlap(question, place);
    }
  }

  void FindOverlap(const std::string& question, const RowPlace& place) {
    for (const Overlap::Match& match : overlap_.Find(question)) {
      if (overlaps_[match.held_out]) continue;
      overlaps_[match.held_out] = true;
      Note(&found_, [&] {
        return absl::StrCat(places_.Text(held_out_places_[match.held_out]),
                            ": shares words with the training row ", place.ToString(), ": \"",
                            Excerpt(match.words, kShownWords), "\"");
      });
    }
  }

  // Takes rows_, and reports those whose question an earlier one has.
  void FindDuplicates() {
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
      return std::tie(a.question, a.place) < std::tie(b.question, b.place);
    });
    struct Duplicate {
      const Row* row;
      const Row* original;
    };
    std::vector<Duplicate> duplicates;
    for (size_t i = 1, original = 0; i < rows_.size(); ++i) {
      if (rows_[i].question != rows_[original].question) original = i;
      else duplicates.push_back({&rows_[i], &rows_[original]});
    }
    std::sort(duplicates.begin(), duplicates.end(),
              [](const Duplicate& a, const Duplicate& b) { return a.row->place < b.row->place; });
    for (const auto& [row, original] : duplicates) {
      SourceReport& report = report_.sources[row->source];
      const bool conflict = row->answer != original->answer;
      if (conflict) ++report.conflicts;
      Note(&report.duplicates, [&] {
        return absl::StrCat(places_.Text(row->place), ": has the prompt of ",
                            places_.Text(original->place), conflict ? ", with another answer" : "");
      });
    }
    rows_.clear();
  }

  const DataCheckOptions& options_;
  DataReport report_;
  Places places_;
  std::vector<Row> rows_;
  Overlap overlap_;
  std::vector<KeptPlace> held_out_places_;
  std::vector<bool> overlaps_;  // Of each held-out row, whether a training row overlaps with it.
  RowFindings found_;           // These overlaps.
  absl::Status too_many_;       // The error of overlap_.
};

}  // namespace

uint64_t LengthCounts::Quantile(double share) const {
  const auto wanted =
      std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(share * static_cast<double>(total_))));
  uint64_t seen = 0;
  for (const auto& [tokens, count] : counts_) {
    seen += count;
    if (seen >= wanted) return tokens;
  }
  return 0;
}

uint64_t LengthCounts::CountAbove(uint64_t tokens) const {
  uint64_t above = 0;
  for (auto it = counts_.upper_bound(tokens); it != counts_.end(); ++it) above += it->second;
  return above;
}

std::vector<LengthCounts::Range> LengthCounts::Histogram() const {
  std::vector<Range> ranges;
  for (const auto& [tokens, count] : counts_) {
    while (ranges.empty() || tokens > ranges.back().to) {
      const uint64_t from = ranges.empty() ? std::bit_floor(tokens) : ranges.back().to + 1;
      ranges.push_back({.from = from, .to = std::max<uint64_t>(1, 2 * from) - 1});
    }
    ranges.back().prompts += count;
  }
  return ranges;
}

bool DataReport::HasFailure() const {
  const bool bad = std::any_of(sources.begin(), sources.end(), [&](const SourceReport& source) {
    return source.rows == 0 || (source.bad.count > 0 && !skip_bad_rows) ||
           source.unscorable.count > 0;
  });
  return bad || (overlap.has_value() && overlap->count > 0);
}

absl::StatusOr<DataReport> CheckDataFiles(const DataCheckOptions& options) {
  return Checker(options).Check();
}

}  // namespace sluice::cli
