#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "services/queue/core/event.h"
#include "services/queue/core/types.h"

// What a job answers to reads: these calls change nothing and are in no log.
namespace sluice::queue {

// What Get reads of one owner. An owner without member is the group's prompt. Without names, all
// fields are read. If `to` is 0, tokens are read up to the end.
struct Want {
  TrajectoryRef owner;
  std::vector<std::string> names;
  uint64_t from = 0, to = 0;
};
struct ReadAnswer {
  // In the order of the wants: one record per stored piece, and one for the whole fields.
  std::vector<Record> records;
  std::vector<Want> missing;  // Wants whose data was dropped, freed or lost.
};

// What Watch sends first, and again after each change.
struct WatchState {
  uint32_t queue_incarnation = 0;
  // Incarnation of the trainers; the job's version K; the step after the last batch of a replay.
  int64_t trainer = 0, version = 0, end = 0;
  Phase phase = Phase::kOpen;
  std::vector<Loaded> published;
};

struct StatsAnswer {
  Ledger ledger;
  std::map<std::string, uint64_t> groups, slots, bytes;
  int64_t version = 0, lowest = -1;  // lowest -1: no engine lives.
  double admission_staleness = 0;
  std::map<std::string, uint32_t> waiting;
  std::map<std::string, int64_t> staleness;
  // By source and by source/eighth of length: see LengthBin.
  std::map<std::string, double> length_ratio;
  std::map<std::string, double> acceptance;
  // The numbers behind admission_staleness, and what to do if max_staleness is too small.
  std::string advice;
  std::vector<std::string> sampler;  // Prompts::DescribeSampler().
  int64_t answers_saved = 0;         // Counters::answers_saved.
};

enum class PeekWhat { kGroups = 1, kTasks, kBatches, kPrompts, kViolations, kLineage };
struct PeekRow {
  Node node;
  std::string state, worker;
  absl::Duration age;
  std::string json;
  std::optional<uint32_t> generation;  // Of the rewards that score it.
};

}  // namespace sluice::queue
