#pragma once

#include <string>

#include "nlohmann/json_fwd.hpp"
#include "services/queue/fsck.h"

// Formats the result of a check of a queue's data directory, for people and for programs. These
// functions have no side effects.
namespace sluice::cli {

// Returns a table of the jobs, their ledgers and, for each damage, its file and offset, the part
// that is intact, and what to do.
std::string FsckText(const queue::FsckReport& report, const std::string& data_dir);
nlohmann::ordered_json FsckJson(const queue::FsckReport& report, const std::string& data_dir);

// Says in a sentence what to do about a job that is not ok. "" if it is ok.
std::string FsckHint(const queue::FsckJob& job, const std::string& data_dir);

}  // namespace sluice::cli
