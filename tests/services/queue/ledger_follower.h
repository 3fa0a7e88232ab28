#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/id.h"
#include "services/queue/core/batch.h"
#include "services/queue/mirror.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::queue {

// Follows a job's mirrored ledger as a stranger would, knowing its documented fields alone: the
// counters of each entry must balance, the hash chain must be what the batches give, and no entry
// may be missing without another saying so.
class LedgerFollower {
 public:
  LedgerFollower(integration::RedisServer* redis, const std::string& job)
      : redis_(redis), key_(LedgerMirror::KeyOf(job)) {}

  using Fields = std::map<std::string, std::string>;

  // Reads on until the entry of `event` or a later one; false: it does not come.
  bool FollowTo(uint64_t event) {
    while (event_ < event || entries.empty()) {
      const redis::Reply reply = redis_->Run({"XREAD", "BLOCK", "20000", "STREAMS", key_, last_});
      if (reply.kind != redis::Reply::Kind::kList || reply.list.empty()) {
        ADD_FAILURE() << key_ << " ends with " << last_ << ", event " << event << " does not come; "
                      << reply.text;
        return false;
      }
      for (const redis::Reply& entry : reply.list[0].list[1].list) Take(entry);
    }
    return true;
  }
  // From the stream's beginning, whatever was seen before.
  void StartOver() { last_ = "0-0", event_ = 0; }

  std::vector<std::pair<std::string, Fields>> entries;  // By id, as they came.
  int64_t checked_hashes = 0;
  std::vector<std::string> gaps() const {
    std::vector<std::string> all;
    for (const auto& [id, fields] : entries) {
      if (fields.contains("gap")) all.push_back(fields.at("gap"));
    }
    return all;
  }
  int64_t Number(const std::string& field) const {
    int64_t value = -1;
    const auto it = entries.back().second.find(field);
    EXPECT_TRUE(it != entries.back().second.end() && absl::SimpleAtoi(it->second, &value)) << field;
    return value;
  }
  void ExpectIs(const Job& job) const {
    const Ledger& ledger = job.ledger();
    EXPECT_EQ(Number("accepted"), ledger.accepted);
    EXPECT_EQ(Number("durable"), ledger.durable);
    EXPECT_EQ(Number("applied"), ledger.applied);
    EXPECT_EQ(Number("live"), ledger.live);
    EXPECT_EQ(Number("dropped"), ledger.dropped_total());
    EXPECT_EQ(Number("tokens_trained"), ledger.tokens_trained);
    EXPECT_EQ(Number("version"), job.version());
    EXPECT_EQ(entries.back().second.at("hash"), ToHex(ledger.hash));
  }

 private:
  void Take(const redis::Reply& entry) {
    const std::string id = entry.list.at(0).text;
    Fields fields;
    for (size_t i = 0; i + 1 < entry.list.at(1).list.size(); i += 2)
      fields[entry.list[1].list[i].text] = entry.list[1].list[i + 1].text;
    const bool first = entries.empty() || last_ == "0-0";
    entries.emplace_back(id, fields);
    const bool gap = fields.contains("gap");
    EXPECT_NE(gap, fields.contains("prev")) << id;
    if (!gap && !first) {
      EXPECT_EQ(fields["prev"], last_) << id;
    }
    last_ = id;
    event_ = std::stoull(id.substr(id.find('-') + 1));
    int64_t reasons = 0;
    for (const auto& [name, value] : fields) {
      if (name.starts_with("dropped.")) reasons += std::stoll(value);
    }
    EXPECT_EQ(reasons, Number("dropped")) << id;
    EXPECT_EQ(Number("accepted"),
              Number("durable") + Number("applied") + Number("live") + Number("dropped"))
        << id;
    const std::string hash = *FromHex(fields["hash"]);
    if (!gap && !first && fields["kind"] == "applied") {
      EXPECT_EQ(hash, NextHash(hash_, Number("version") - 1, fields["batch"])) << id;
      ++checked_hashes;
    } else if (!gap && !first && fields["kind"] != "restored") {
      EXPECT_EQ(hash, hash_) << id;
    }
    hash_ = hash;
  }

  integration::RedisServer* const redis_;
  const std::string key_;
  std::string last_ = "0-0", hash_;
  uint64_t event_ = 0;
};

}  // namespace sluice::queue
