#pragma once

#include <string>

#include "nlohmann/json_fwd.hpp"
#include "services/queue/fsck.h"

// What the check of a queue's data directory found, as people and programs read it. Pure.
namespace sluice::cli {

// A line a job with its books, then each damage: file and offset, what is behind it, what to do.
std::string FsckText(const queue::FsckReport& report, const std::string& data_dir);
nlohmann::ordered_json FsckJson(const queue::FsckReport& report, const std::string& data_dir);

// What a person does about a job that is not ok, in a sentence. Empty: nothing.
std::string FsckHint(const queue::FsckJob& job, const std::string& data_dir);

}  // namespace sluice::cli
