#include "tools/sluice/scrub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr char kCanary[] = "c4n4ry7f3a91";

const Scrubber& Plain() {
  static const Scrubber* const scrubber = new Scrubber({});
  return *scrubber;
}

TEST(Scrub, TakesOutASecretInEachForm) {
  for (const std::string& text : {
           absl::StrCat("-----BEGIN PRIVATE KEY-----\nMIG", kCanary, "\n-----END PRIVATE KEY-----"),
           absl::StrCat("-----BEGIN EC PRIVATE KEY-----\nMIG", kCanary),  // Cut off.
           absl::StrCat("rediss://default:", kCanary, "@redis.example:6379/0"),
           absl::StrCat("password=", kCanary),
           absl::StrCat("requirepass ", kCanary),
           absl::StrCat("{\\\"api_key\\\": \\\"", kCanary, "\\\"}"),
           absl::StrCat("REDIS_PASSWORD: '", kCanary, "'"),
           absl::StrCat("Authorization: Bearer ", kCanary),
           absl::StrCat("the header Basic ", kCanary, "== is refused"),
           absl::StrCat("key sk-", kCanary),
           absl::StrCat("the prompt, column \"q\", is \"Anna has three apples and ", kCanary,
                        " more than that\", wanted: a text"),
           absl::StrCat("is \"a quotation that was cut after eighty bytes ", kCanary),
       }) {
    EXPECT_THAT(Plain().ScrubText(text), Not(HasSubstr(kCanary))) << text;
  }
}

TEST(Scrub, TakesOutTheValuesOfSecretVariables) {
  const Scrubber scrubber({{"OPENAI_API_KEY", kCanary},
                           {"SLUICE_REDIS_PASSWORD", "hunter2-and-more"},
                           {"HOME", "/home/anna"},
                           {"DB_TOKEN", "abc"}});
  EXPECT_EQ(scrubber.ScrubText(absl::StrCat("called with ", kCanary, " in /home/anna")),
            "called with [removed: value of OPENAI_API_KEY] in /home/anna");
  EXPECT_THAT(scrubber.ScrubText("AUTH hunter2-and-more"), Not(HasSubstr("hunter2")));
  EXPECT_EQ(scrubber.ScrubText("abcdef"), "abcdef") << "too short to tell from other text";
}

TEST(Scrub, LeavesWhatExplainsAProblem) {
  for (const char* text :
       {"tokens_generated 470899", "sluice_rollout_tokens_generated_total{job_id=\"digits\"} 12",
        "max_response tokens: 8192 of 10240", "job digits FAILED: no row of the data can be used",
        "queue-0 at 127.0.0.1:7410: Connection refused",
        "SLUICE-AUTH-0002 the private key /tls/tls.key has the mode 644",
        "spiffe://local/sluice/queue/queue-0"}) {
    EXPECT_EQ(Plain().ScrubText(text), text);
  }
}

TEST(Scrub, GoesIntoJsonAndLogLines) {
  const Json json = {{"redis_password", kCanary},
                     {"tokens", "12"},
                     {"list", {absl::StrCat("token=", kCanary)}},
                     {"deep", {{"secret", kCanary}, {"n", 7}}}};
  const Json scrubbed = Plain().ScrubJson(json);
  EXPECT_EQ(scrubbed.dump(),
            R"({"redis_password":"[removed]","tokens":"12","list":["token=[removed]"],)"
            R"("deep":{"secret":"[removed]","n":7}})");

  const std::string lines = absl::StrCat("{\"event\":\"x\",\"api_key\":\"", kCanary,
                                         "\"}\nplain -----BEGIN PRIVATE KEY-----\n", kCanary,
                                         "\n-----END PRIVATE KEY-----\nafter\n");
  EXPECT_EQ(Plain().ScrubLines(lines),
            "{\"event\":\"x\",\"api_key\":\"[removed]\"}\nplain [removed: PEM]\nafter\n");
}

TEST(Scrub, LeavesLongLabelsWhereNoRowsAreQuoted) {
  const std::string page = "calls{service=\"sluice.registry.v1.RegistryService.and.more\"} 4";
  EXPECT_EQ(Plain().ScrubSecrets(page), page);
  EXPECT_NE(Plain().ScrubText(page), page);
}

TEST(Scrub, KnowsSecretNames) {
  for (const char* name : {"password", "REDIS_PASSWORD", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY",
                           "HF_TOKEN", "auth", "client-secret"})
    EXPECT_TRUE(IsSecretName(name)) << name;
  for (const char* name : {"tokens", "max_tokens", "tokens_generated", "keyboard", "HOME", "author",
                           "micro_batch_tokens", "monkey", "job"})
    EXPECT_FALSE(IsSecretName(name)) << name;
}

}  // namespace
}  // namespace sluice::cli
