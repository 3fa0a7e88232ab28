// What a publisher keeps and what a way to it costs, over random histories. The slow models are
// the list of all leases, and a search that relaxes every edge until nothing changes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/splitmix.h"
#include "common/weights/publisher.h"
#include "common/weights/weight_path.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr uint64_t kWhole = 4 * 3000;  // Bytes of the weights below.

// Bytes of the cheapest way by relaxation. Nullopt: there is none.
std::optional<uint64_t> SlowCost(const std::vector<WeightEdge>& edges,
                                 const std::optional<Fingerprint>& from, const Fingerprint& to) {
  std::map<std::string, uint64_t> cost = {{"", 0}};
  if (from.has_value()) cost[from->bytes()] = 0;
  for (bool changed = true; changed;) {
    changed = false;
    const auto relax = [&](const std::string& a, const std::string& b, uint64_t bytes) {
      if (!cost.contains(a)) return;
      const auto [it, fresh] = cost.try_emplace(b, cost[a] + bytes);
      if (!fresh && it->second <= cost[a] + bytes) return;
      it->second = cost[a] + bytes;
      changed = true;
    };
    for (const WeightEdge& edge : edges) {
      const std::string state = edge.version.state.bytes();
      relax(edge.base.has_value() ? edge.base->bytes() : "", state, edge.bytes);
      if (edge.base.has_value()) relax(state, edge.base->bytes(), edge.bytes);
    }
  }
  const auto it = cost.find(to.bytes());
  return it == cost.end() ? std::nullopt : std::optional(it->second);
}

// Whether the manifest and all its chunks are kept.
bool HasAllOf(const WeightPublisher& publisher, const std::string& id) {
  const auto object = publisher.FindObject(id);
  weights::v1::Manifest manifest;
  if (object == nullptr || !manifest.ParseFromString(*object)) return false;
  return std::all_of(manifest.chunks().begin(), manifest.chunks().end(), [&](const auto& chunk) {
    return publisher.FindObject(chunk.sha256()) != nullptr;
  });
}

TEST(RetentionTest, W10NothingLeasedIsCollectedAndAWayCostsAtMostAnAnchorAndItsDeltas) {
  int ways = 0, ended = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    ManualClock clock;
    const int retain = static_cast<int>(1 + random.Below(4));
    WeightPublisher publisher(
        {.job = std::string(32, 'a'), .retain_versions = retain, .chunk_target_bytes = 4096},
        &clock);
    struct Lease {
      std::string manifest;
      absl::Duration expires;
    };
    std::map<std::string, Lease> leases;
    std::set<std::string> pins;
    std::map<std::string, PublishedVersion> version_of;  // By manifest.
    TensorSet weights = *TensorSet::Create({{"w", DType::kF32, {3000}}});

    for (int64_t v = 0; v < 60; ++v) {
      const uint64_t moved = random.Below(6) == 0 ? 3000 : random.Below(200);
      for (uint64_t i = 0; i < moved; ++i)
        weights.as<uint32_t>(0)[random.Below(3000)] ^= static_cast<uint32_t>(random.Below(1000));
      const auto made = publisher.Publish(weights, {1, v}, "");
      ASSERT_TRUE(made.ok()) << made.status();
      version_of[made->manifest] = *made;
      clock.Advance(absl::Seconds(random.Below(20)));

      // Somebody leases what is kept, or pins it, or takes a pin off.
      const std::vector<WeightEdge> before = publisher.edges();
      const WeightEdge& edge = before[random.Below(before.size())];
      version_of[edge.manifest] = edge.version;
      if (random.Below(3) == 0) {
        const std::string holder = absl::StrCat("rollout-", random.Below(3));
        const absl::Duration ttl = absl::Seconds(1 + random.Below(200));
        publisher.Lease(holder, {edge.manifest}, ttl);
        leases[holder] = {edge.manifest, clock.Monotonic() + ttl};
      }
      if (random.Below(15) == 0 && publisher.SetPin(edge.manifest, true).ok())
        pins.insert(edge.manifest);
      if (random.Below(10) == 0 && !pins.empty()) {
        ASSERT_TRUE(publisher.SetPin(*pins.begin(), false).ok());
        pins.erase(pins.begin());
      }

      std::set<std::string> leased = pins;
      for (const auto& [unused, lease] : leases) {
        if (lease.expires > clock.Monotonic()) leased.insert(lease.manifest);
        else ++ended;
      }
      const std::vector<WeightEdge> edges = publisher.edges();
      for (const std::string& manifest : leased) {
        EXPECT_TRUE(HasAllOf(publisher, manifest)) << v;
        EXPECT_TRUE(SlowCost(edges, std::nullopt, version_of.at(manifest).state).has_value());
      }
      for (const WeightEdge& kept : edges) {
        EXPECT_TRUE(HasAllOf(publisher, kept.manifest)) << v;
        for (const std::optional<Fingerprint>& from :
             {std::optional<Fingerprint>(), std::optional(edges.front().version.state),
              std::optional(made->state)}) {
          if (from == kept.version.state) continue;
          const std::vector<WeightStep> way = FindWeightPath(edges, from, kept.version.state);
          ASSERT_FALSE(way.empty()) << v;
          uint64_t bytes = 0;
          for (const WeightStep& step : way) bytes += step.edge.bytes;
          EXPECT_EQ(bytes, SlowCost(edges, from, kept.version.state));
          // An anchor, and deltas of half the weights; small chunks take a little more.
          EXPECT_LE(bytes, kWhole + kWhole / 2 + kWhole / 10) << v;
          ++ways;
        }
      }
    }
  }
  EXPECT_GT(ways, 10'000);
  EXPECT_GT(ended, 1000);
}

}  // namespace
}  // namespace sluice
