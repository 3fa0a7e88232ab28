#include "services/queue/core/batch.h"

#include <bit>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {
template <typename T>
void AppendLittleEndian(T value, std::string& out) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
}

constexpr int kFormat = 1;

nlohmann::json ToJson(const std::vector<RowRef>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const RowRef& row : rows) out.push_back({row.source, row.epoch, row.index, row.occurrence});
  return out;
}

std::vector<RowRef> RowsFrom(const nlohmann::json& json) {
  std::vector<RowRef> rows;
  for (const auto& row : json) {
    rows.push_back(
        {.source = row.at(0), .epoch = row.at(1), .index = row.at(2), .occurrence = row.at(3)});
  }
  return rows;
}

nlohmann::json ToJson(const std::map<uint32_t, Lineage::Generation>& lineage) {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& [name, generation] : lineage)
    out.push_back({name, generation.rewards, generation.steps});
  return out;
}

std::map<uint32_t, Lineage::Generation> LineageFrom(const nlohmann::json& json) {
  std::map<uint32_t, Lineage::Generation> lineage;
  for (const auto& generation : json) {
    Lineage::Generation& out = lineage[generation.at(0)];
    out.rewards = generation.at(1).get<std::map<std::string, std::string>>();
    out.steps = generation.at(2).get<std::vector<std::pair<int64_t, int64_t>>>();
  }
  return lineage;
}

// Rewards of visited rows are packed, as [row, earned, missed] of 8 bytes each: their doubles must
// come back exactly, and there may be many.
nlohmann::json ToJson(const SamplerState& state) {
  nlohmann::json sources = nlohmann::json::array(), pending = nlohmann::json::array();
  for (const SamplerSource& source : state.sources) {
    nlohmann::json rests = nlohmann::json::array();
    for (const auto& [row, rest] : source.rests) rests.push_back({row, rest.perfect, rest.until});
    std::string visited;
    for (const auto& [row, counts] : source.visited) {
      AppendLittleEndian<uint64_t>(row, visited);
      AppendLittleEndian<uint64_t>(std::bit_cast<uint64_t>(counts.first), visited);
      AppendLittleEndian<uint64_t>(std::bit_cast<uint64_t>(counts.second), visited);
    }
    sources.push_back({{"level", source.level},
                       {"drawn", source.drawn},
                       {"since_step", source.since_step},
                       {"window", source.window},
                       {"weighted", source.weighted},
                       {"uniform", source.uniform},
                       {"visited", absl::Base64Escape(visited)},
                       {"rests", rests}});
  }
  for (const GroupResult& result : state.pending) {
    pending.push_back({{"step", result.step},
                       {"row", ToJson(std::vector<RowRef>{result.row})[0]},
                       {"sum", result.sum},
                       {"answers", result.answers},
                       {"perfect", result.perfect}});
  }
  return {{"sources", sources}, {"pending", pending}, {"noted", state.noted}};
}

SamplerState SamplerFrom(const nlohmann::json& json) {
  SamplerState state{.sources = {}, .pending = {}, .noted = json.at("noted")};
  for (const auto& from : json.at("sources")) {
    SamplerSource& source = state.sources.emplace_back();
    source.level = from.at("level");
    source.drawn = from.at("drawn");
    source.since_step = from.at("since_step");
    source.window = from.at("window").get<std::vector<std::pair<double, uint32_t>>>();
    source.weighted = from.at("weighted");
    source.uniform = from.at("uniform");
    for (const auto& rest : from.value("rests", nlohmann::json::array()))
      source.rests[rest.at(0)] = {.perfect = rest.at(1), .until = rest.at(2)};

    std::string visited;
    absl::Base64Unescape(from.at("visited").get<std::string>(), &visited);
    const auto word = [&](size_t at) {
      uint64_t value = 0;
      for (size_t i = 0; i < 8; ++i)
        value |= uint64_t{static_cast<unsigned char>(visited[at + i])} << (8 * i);
      return value;
    };
    for (size_t at = 0; at + 24 <= visited.size(); at += 24) {
      source.visited[word(at)] = {std::bit_cast<double>(word(at + 8)),
                                  std::bit_cast<double>(word(at + 16))};
    }
  }
  for (const auto& from : json.at("pending")) {
    state.pending.push_back({.step = from.at("step"),
                             .row = RowsFrom(nlohmann::json::array({from.at("row")})).at(0),
                             .sum = from.at("sum"),
                             .answers = from.at("answers"),
                             .perfect = from.value("perfect", false)});
  }
  return state;
}
}  // namespace

std::string CanonicalBytes(const std::vector<FrozenGroup>& groups) {
  std::string out;
  for (const FrozenGroup& group : groups) {
    const Id16 id = group.id.id();
    for (const FrozenMember& member : group.members) {
      out.append(id.str());
      AppendLittleEndian<uint32_t>(member.member, out);
      AppendLittleEndian<uint32_t>(member.attempt, out);
      AppendLittleEndian<uint32_t>(member.crc32c, out);
      AppendLittleEndian<uint32_t>(static_cast<uint32_t>(member.masked.size()), out);
      for (const TokenRun& run : member.masked) {
        AppendLittleEndian<uint64_t>(run.first, out);
        AppendLittleEndian<uint64_t>(run.count, out);
      }
    }
  }
  return out;
}

std::string NextHash(const std::string& hash, int64_t k, const std::string& canonical) {
  std::string bytes = hash;
  AppendLittleEndian<int64_t>(k, bytes);
  return Sha256(bytes + canonical);
}

std::string EncodeCursor(const Cursor& cursor) {
  const Ledger& ledger = cursor.ledger;
  nlohmann::json json = {
      {"format", kFormat},
      {"job", cursor.job},
      {"version", cursor.version},
      {"incarnation", cursor.incarnation},
      {"next_group", cursor.next_group},
      {"ledger",
       {{"accepted", ledger.accepted},
        {"durable", ledger.durable},
        {"applied", ledger.applied},
        {"live", ledger.live},
        {"dropped", ledger.dropped},
        {"tokens_generated", ledger.tokens_generated},
        {"tokens_trained", ledger.tokens_trained},
        {"tokens_masked", ledger.tokens_masked},
        {"hash", ToHex(ledger.hash)}}},
      {"drawn", cursor.prompts.drawn},
      {"again", ToJson(cursor.prompts.again)},
      {"quarantined", ToJson(cursor.prompts.quarantined)},
      {"live", ToJson(cursor.live)},
      {"lineage", ToJson(cursor.lineage)},
  };
  if (!cursor.prompts.sampler.sources.empty()) json["sampler"] = ToJson(cursor.prompts.sampler);
  return json.dump();
}

absl::StatusOr<Cursor> DecodeCursor(const std::string& text) {
  const auto bad = [](absl::string_view why) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CURSOR",
                 absl::StrCat("the cursor cannot be read: ", why));
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return bad("it is no JSON object");
  try {
    if (json.at("format") != kFormat)
      return bad(absl::StrCat("it has format ", json.at("format").dump(), ", but this build reads ",
                              kFormat));
    Cursor cursor;
    cursor.job = json.at("job");
    cursor.version = json.at("version");
    cursor.incarnation = json.at("incarnation");
    cursor.next_group = json.at("next_group");

    const nlohmann::json& ledger = json.at("ledger");
    cursor.ledger.accepted = ledger.at("accepted");
    cursor.ledger.durable = ledger.at("durable");
    cursor.ledger.applied = ledger.at("applied");
    cursor.ledger.live = ledger.at("live");
    cursor.ledger.dropped = ledger.at("dropped").get<std::map<std::string, int64_t>>();
    cursor.ledger.tokens_generated = ledger.at("tokens_generated");
    cursor.ledger.tokens_trained = ledger.at("tokens_trained");
    cursor.ledger.tokens_masked = ledger.at("tokens_masked");
    SLUICE_ASSIGN_OR_RETURN(cursor.ledger.hash, FromHex(ledger.at("hash").get<std::string>()));

    cursor.prompts.drawn = json.at("drawn").get<std::vector<uint64_t>>();
    cursor.prompts.again = RowsFrom(json.at("again"));
    cursor.prompts.quarantined = RowsFrom(json.at("quarantined"));
    cursor.live = RowsFrom(json.at("live"));
    cursor.lineage = LineageFrom(json.value("lineage", nlohmann::json::array()));
    if (const auto sampler = json.find("sampler"); sampler != json.end())
      cursor.prompts.sampler = SamplerFrom(*sampler);
    if (cursor.version < 0 || cursor.ledger.hash.size() != 32)
      return bad("its version is below 0, or its ledger hash has not 32 bytes");
    return cursor;
  } catch (const nlohmann::json::exception& error) {
    return bad(error.what());
  }
}

}  // namespace sluice::queue
