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

// Reads the copy of a job's ledger in its Redis stream, as a foreign program would: by the
// documented fields alone. The counters of each entry must balance, the hash chain must follow from
// the batches, and an entry may be missing only if the next one says so (field `gap`).
class LedgerFollower {
 public:
  LedgerFollower(integration::RedisServer* redis, const std::string& job)
      : redis_(redis), key_(LedgerMirror::KeyOf(job)) {}

  using Fields = std::map<std::string, std::string>;

  // Reads until the entry of `event` or a later one has come. Returns false if the stream stays
  // silent for 20 s.
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

  // Reads from the beginning of the stream again. `entries` keeps what was read before.
  void StartOver() { last_ = "0-0", event_ = 0; }

  std::vector<std::pair<std::string, Fields>> entries;  // Id and fields, in the order read.
  int64_t checked_hashes = 0;

  // The reason of each gap, in the order read.
  std::vector<std::string> gaps() const {
    std::vector<std::string> all;
    for (const auto& [id, fields] : entries) {
      if (fields.contains("gap")) all.push_back(fields.at("gap"));
    }
    return all;
  }

  // The number in `field` of the last entry.
  int64_t Number(const std::string& field) const {
    int64_t value = -1;
    const auto it = entries.back().second.find(field);
    EXPECT_TRUE(it != entries.back().second.end() && absl::SimpleAtoi(it->second, &value)) << field;
    return value;
  }

  // The last entry has the numbers of the job's own ledger.
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

    // Each entry names the one before it, or says why it cannot.
    const bool gap = fields.contains("gap");
    EXPECT_NE(gap, fields.contains("prev")) << id;
    if (!gap && !first) {
      EXPECT_EQ(fields["prev"], last_) << id;
    }

    last_ = id;
    event_ = std::stoull(id.substr(id.find('-') + 1));

    // The reasons of dropped members add up, and every accepted member is accounted for.
    int64_t reasons = 0;
    for (const auto& [name, value] : fields) {
      if (name.starts_with("dropped.")) reasons += std::stoll(value);
    }
    EXPECT_EQ(reasons, Number("dropped")) << id;
    EXPECT_EQ(Number("accepted"),
              Number("durable") + Number("applied") + Number("live") + Number("dropped"))
        << id;

    // Only an applied batch moves the hash; a restore may set it back.
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
