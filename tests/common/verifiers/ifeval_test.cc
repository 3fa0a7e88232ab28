#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/verifiers/ifeval/checks.h"
#include "common/verifiers/ifeval/split.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct InstructionCase {
  const char* id;
  json kwargs;
  std::vector<std::string> right, wrong;
};

const std::vector<InstructionCase>& InstructionCases() {
  static const auto* const cases = new std::vector<InstructionCase>{
      {"keywords:existence",
       {{"keywords", {"River", "boat"}}},
       {"A BOAT on the river.", "riverboat"},
       {"A boat.", "river", "rive r boat"}},
      {"keywords:frequency",
       {{"keyword", "Tea"}, {"relation", "at least"}, {"frequency", 2}},
       {"tea and TEA", "teatea"},
       {"tea", ""}},
      {"keywords:frequency",
       {{"keyword", "aa"}, {"relation", "less than"}, {"frequency", 2}},
       {"aaa", "a"},  // Occurrences do not overlap.
       {"aaaa", "aa aa"}},
      {"keywords:forbidden_words",
       {{"forbidden_words", {"art", "na\u00efve"}}},
       {"a party", "start", "arts", "art_1"},
       {"Art!", "the art.", "so NA\u00cfVE", "party art"}},
      {"keywords:letter_frequency",
       {{"letter", "e"}, {"let_relation", "at least"}, {"let_frequency", 3}},
       {"EeE", "the tree"},
       {"tree", "xyz"}},
      {"keywords:letter_frequency",
       {{"letter", "!"}, {"let_relation", "less than"}, {"let_frequency", 1}},
       {"calm"},
       {"loud!"}},
      {"length_constraints:number_sentences",
       {{"relation", "at least"}, {"num_sentences", 2}},
       {"One. Two.", "Is it? Yes", "A.\n\nB.", "\u4e00\u3002\u4e8c\u3002"},
       {"One, two.", "Dr. Smith came.", "It is 3.5 m.", "e.g. this"}},
      {"length_constraints:number_sentences",
       {{"relation", "less than"}, {"num_sentences", 2}},
       {"Only one.", "Wait... what"},
       {"One! Two!"}},
      {"length_constraints:number_paragraphs",
       {{"num_paragraphs", 2}},
       {"a\n***\nb", "a *** b", "***\na\n***\nb\n***"},
       {"a", "a\n\nb", "a\n***\n***\nb", "a***b***c"}},
      {"length_constraints:number_words",
       {{"relation", "at least"}, {"num_words", 4}},
       {"one two three four", "don't stop me"},
       {"one two three", "a-b-c", "..."}},
      {"length_constraints:number_words",
       {{"relation", "less than"}, {"num_words", 2}},
       {"one", "snake_case"},
       {"two words"}},
      {"length_constraints:nth_paragraph_first_word",
       {{"num_paragraphs", 2}, {"nth_paragraph", 2}, {"first_word", "Then"}},
       {"First.\n\nThen it went.", "First.\n\n\"then,\" it said", "A\n\nTHEN"},
       {"Then.", "First.\n\nThenceforth", "Then\n\nfirst", "A\n\nThen\n\nB", "A\n\n\n\nThen"}},
      {"detectable_content:number_placeholders",
       {{"num_placeholders", 2}},
       {"[name] at [place]", "[a][b]", "[[a] [b]"},
       {"[name", "[name]", "[na\nme] [x]"}},
      {"detectable_content:postscript",
       {{"postscript_marker", "P.P.S"}},
       {"Bye.\nP.P.S more", "p. p. s. more"},
       {"P.S. more", "P..P.S", "pps"}},
      {"detectable_content:postscript",
       {{"postscript_marker", "P.S."}},
       {"Bye.\nP.S. more", "p. s. more"},
       {"P.S more", "PS."}},
      {"detectable_format:number_bullet_lists",
       {{"num_bullets", 2}},
       {"* one\n* two", "- one\n  - two", "Here:\n* one\n- two\nDone."},
       {"* one", "* one\n* two\n* three", "**bold** one\n* two", "one * two * three"}},
      {"detectable_format:constrained_response",
       json::object(),
       {"My answer is yes.", "Well. My answer is maybe."},
       {"my answer is yes.", "My answer is yes", "Yes."}},
      {"detectable_format:number_highlighted_sections",
       {{"num_highlights", 2}},
       {"*one* and *two*", "**one** and **two**", "*one* and **two**"},
       {"*one*", "* one\n* two", "** ** * *", "*one\n* two*"}},
      {"detectable_format:multiple_sections",
       {{"section_spliter", "Section"}, {"num_sections", 2}},
       {"Section 1\na\nSection 2\nb", "Section1 Section2"},
       {"Section 1", "SECTION 1 SECTION 2", "Section one Section two"}},
      {"detectable_format:json_format",
       json::object(),
       {"{\"a\": [1, null]}", "```json\n{}\n```", "```\n[1]\n```", " \"text\" "},
       {"{'a': 1}", "{\"a\": 1", "Here: {}", "```json\n{}\n``` done"}},
      {"detectable_format:title",
       json::object(),
       {"<<A poem>>\ntext", "see <<< x >>>"},
       {"<A poem>", "<<>>", "<< >>", "<<A\npoem>>", ">>a<<"}},
      {"combination:two_responses",
       json::object(),
       {"one******two", "one\n******\ntwo", "******one******two"},
       {"one", "one******one", "one******two******three", "one************two"}},
      {"combination:repeat_prompt",
       {{"prompt_to_repeat", "Say it.\n"}},
       {"say it. I did.", "  Say it.\nNow"},
       {"I say it.", "Say"}},
      {"startend:end_checker",
       {{"end_phrase", "The end."}},
       {"It was so. THE END.", "\"x the end.\"", "the end.\n"},
       {"The end", "The end. Or not?"}},
      {"startend:quotation",
       json::object(),
       {"\"all of it\"", "\n\"a\" and \"b\"\n"},
       {"\"", "'all'", "\"open", "closed\""}},
      {"change_case:capital_word_frequency",
       {{"capital_frequency", 2}, {"capital_relation", "at least"}},
       {"I SEE it", "NASA, (ESA)", "A-B C3"},
       {"NASA and Esa", "123 X"}},
      {"change_case:capital_word_frequency",
       {{"capital_frequency", 1}, {"capital_relation", "less than"}},
       {"none here", "Only Titles"},
       {"ONE"}},
      {"change_case:english_capital",
       json::object(),
       {"ALL 4 OF US!", "\u00c9T\u00c9"},
       {"ALL of US", "123", "\u00c9t\u00c9"}},
      {"change_case:english_lowercase", json::object(), {"all 4 of us!"}, {"All of us", "123"}},
      {"punctuation:no_comma", json::object(), {"a; b."}, {"a, b", ","}},
  };
  return *cases;
}

json IfevalRow(const std::vector<std::string>& ids, const std::vector<json>& kwargs) {
  return {{"prompt", "p"}, {"instruction_id_list", ids}, {"kwargs", kwargs}};
}

absl::StatusOr<Verdict> JudgeIfeval(const json& args, const json& row, const std::string& text) {
  const auto verifier = MakeVerifier("ifeval", args);
  if (!verifier.ok()) return verifier.status();
  const auto verdict = (*verifier)->Score({text}, row);
  EXPECT_EQ((*verifier)->CheckRow(row), verdict.status());
  return verdict;
}

double IfevalScore(const json& args, const json& row, const std::string& text) {
  const auto verdict = JudgeIfeval(args, row, text);
  EXPECT_TRUE(verdict.ok()) << verdict.status();
  return verdict.ok() ? verdict->score : -1;
}

TEST(IfevalTest, EachInstructionIsFollowedByRightAnswersAndNotByWrongOnes) {
  for (const InstructionCase& c : InstructionCases()) {
    const json row = IfevalRow({c.id}, {c.kwargs});
    for (const std::string& answer : c.right)
      EXPECT_EQ(IfevalScore({}, row, answer), 1) << c.id << " " << c.kwargs << ": " << answer;
    for (const std::string& answer : c.wrong)
      EXPECT_EQ(IfevalScore({}, row, answer), 0) << c.id << " " << c.kwargs << ": " << answer;
  }
}

TEST(IfevalTest, ThereAreTwentyFourInstructionsAndACaseForEach) {
  std::set<std::string> tested, known;
  for (const InstructionCase& c : InstructionCases()) tested.insert(c.id);
  for (const ifeval::InstructionRow& row : ifeval::Instructions())
    known.insert(std::string(row.id));
  EXPECT_EQ(known.size(), 24u);
  EXPECT_EQ(tested, known);
}

TEST(IfevalTest, AllInstructionsMustHoldOrTheirShareIsTheScore) {
  const json row = IfevalRow({"punctuation:no_comma", "change_case:english_lowercase"}, {{}, {}});
  EXPECT_EQ(IfevalScore({}, row, "a b"), 1);
  EXPECT_EQ(IfevalScore({}, row, "a, b"), 0);
  EXPECT_EQ(IfevalScore({{"score", "fraction"}}, row, "a, b"), 0.5);
  EXPECT_EQ(JudgeIfeval({}, row, "A b")->reason, "missed:change_case:english_lowercase");
  EXPECT_EQ(JudgeIfeval({}, row, "a b")->reason, "right");
}

TEST(IfevalTest, LooseAlsoLooksAtTheAnswerWithoutItsFirstOrLastLineAndWithoutAsterisks) {
  const json lower = IfevalRow({"change_case:english_lowercase"}, {{}});
  EXPECT_EQ(IfevalScore({}, lower, "Sure:\nall lower"), 0);
  for (const char* answer : {"Sure:\nall lower", "all lower\nBye!", "Sure:\nall lower\nBye!"})
    EXPECT_EQ(IfevalScore({{"mode", "loose"}}, lower, answer), 1) << answer;
  EXPECT_EQ(IfevalScore({{"mode", "loose"}}, lower, "low\nHigh\nlow"), 0);

  const json starts = IfevalRow({"combination:repeat_prompt"}, {{{"prompt_to_repeat", "do it"}}});
  EXPECT_EQ(IfevalScore({}, starts, "**Do it**"), 0);
  EXPECT_EQ(IfevalScore({{"mode", "loose"}}, starts, "**Do it**"), 1);

  // One instruction may hold in one form, and another one in another form.
  const json both = IfevalRow({"change_case:english_lowercase", "keywords:existence"},
                              {{}, {{"keywords", {"sure"}}}});
  EXPECT_EQ(IfevalScore({{"mode", "loose"}}, both, "Sure:\nlow"), 1);
}

TEST(IfevalTest, AnEmptyAnswerFollowsNothing) {
  for (const char* answer : {"", " \n", "<think>a</think> "})
    EXPECT_EQ(IfevalScore({{"mode", "loose"}}, IfevalRow({"punctuation:no_comma"}, {{}}), answer),
              0);
  EXPECT_EQ(JudgeIfeval({}, IfevalRow({"punctuation:no_comma"}, {{}}), "<think>a")->reason,
            "unfinished");
}

TEST(IfevalTest, ArgumentsThatATableFillsWithNullOrFloatsAreRead) {
  json kwargs = {{"keywords", nullptr}, {"num_bullets", 1.0}, {"relation", nullptr}};
  EXPECT_EQ(IfevalScore({}, IfevalRow({"detectable_format:number_bullet_lists"}, {kwargs}), "* a"),
            1);
  EXPECT_EQ(IfevalScore({}, IfevalRow({"punctuation:no_comma"}, {nullptr}), "a"), 1);
}

TEST(IfevalTest, ARowThatCannotBeCheckedIsRefusedByItsFault) {
  const auto refusal = [](const json& row) {
    const absl::Status status = JudgeIfeval({}, row, "a").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << row;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({{"prompt", "p"}}), HasSubstr("`instruction_id_list` must be a list"));
  EXPECT_THAT(refusal({{"instruction_id_list", {"a"}}}), HasSubstr("`kwargs` must be a list of 1"));
  EXPECT_THAT(refusal(IfevalRow({"punctuation:no_comma"}, {{}, {}})),
              HasSubstr("list of 1 objects"));
  EXPECT_THAT(refusal({{"instruction_id_list", json::array({5})}, {"kwargs", {nullptr}}}),
              HasSubstr("`instruction_id_list` is number, wanted"));
  EXPECT_THAT(refusal(IfevalRow({"punctuation:no_comma"}, {7})), HasSubstr("`kwargs` is number"));
  EXPECT_THAT(refusal(IfevalRow({"language:response_language"}, {{{"language", "en"}}})),
              HasSubstr("\"language:response_language\" is no instruction that can be checked"));
  const auto bad_args = [&](const char* id, const json& kwargs) {
    return refusal(IfevalRow({id}, {kwargs}));
  };
  EXPECT_THAT(bad_args("keywords:existence", json::object()),
              HasSubstr("keywords:existence has no argument keywords"));
  EXPECT_THAT(bad_args("keywords:existence", {{"keywords", json::array()}}),
              HasSubstr("keywords = [], wanted: a list of 1 to 64 texts"));
  EXPECT_THAT(
      bad_args("keywords:frequency", {{"keyword", "a"}, {"relation", "around"}, {"frequency", 1}}),
      HasSubstr("relation = \"around\", wanted: \"at least\" or \"less than\""));
  EXPECT_THAT(
      bad_args("length_constraints:number_words", {{"relation", "at least"}, {"num_words", 1.5}}),
      HasSubstr("num_words = 1.5, wanted: a whole number"));
  EXPECT_THAT(bad_args("keywords:letter_frequency",
                       {{"letter", "ab"}, {"let_relation", "at least"}, {"let_frequency", 1}}),
              HasSubstr("letter = ab, wanted: one letter"));
  EXPECT_THAT(bad_args("length_constraints:nth_paragraph_first_word",
                       {{"num_paragraphs", 1}, {"nth_paragraph", 2}, {"first_word", "a"}}),
              HasSubstr("nth_paragraph = 2, wanted: 1 to num_paragraphs"));
}

TEST(IfevalTest, WrongSettingsAreRefused) {
  EXPECT_THAT(std::string(MakeVerifier("ifeval", {{"mode", "exact"}}).status().message()),
              HasSubstr("args.mode is \"exact\", wanted: strict or loose"));
  EXPECT_THAT(std::string(MakeVerifier("ifeval", {{"score", "mean"}}).status().message()),
              HasSubstr("args.score is \"mean\", wanted: all or fraction"));
}

TEST(IfevalTest, AnAnswerThatTakesTooLongIsTooComplex) {
  json keywords = json::array();
  for (int i = 0; i < 64; ++i) keywords.push_back(absl::StrCat("k", i));
  const json row = IfevalRow({"keywords:existence"}, {{{"keywords", keywords}}});
  EXPECT_EQ(JudgeIfeval({}, row, std::string(10'000, 'a'))->reason, "missed:keywords:existence");
  EXPECT_EQ(JudgeIfeval({}, row, std::string(100'000, 'a'))->reason, "too_complex");
}

// Texts in which a search that goes back again and again would not end within the time of this
// test: 200,000 bytes, of which each pair would be looked at.
TEST(IfevalTest, HostileAnswersEndInTheBudget) {
  std::vector<json> rows = {
      IfevalRow({"keywords:forbidden_words"}, {{{"forbidden_words", {std::string(2000, 'a')}}}})};
  for (const InstructionCase& c : InstructionCases()) rows.push_back(IfevalRow({c.id}, {c.kwargs}));
  for (const char* unit :
       {"a",    "1. ", " 1. ",   "[",   "*",        "**",   "* ",     "<<", ">>", "p. ",
        "\n\n", " \n", "******", ".\"", "Section ", "\xff", "\u3000", "[[", "\"", "\u00e9"}) {
    std::string text;
    while (text.size() < 200'000) text += unit;
    for (const json& row : rows) {
      const auto verdict = JudgeIfeval({}, row, text);
      ASSERT_TRUE(verdict.ok()) << verdict.status();
      EXPECT_THAT(verdict->reason, testing::AnyOf("right", "too_complex", HasSubstr("missed:")));
    }
  }
}

TEST(IfevalSplitTest, SentencesEndAsTheHeaderSays) {
  const std::vector<std::pair<std::string, uint64_t>> cases = {
      {"", 0},
      {"...", 0},
      {"No end", 1},
      {"One. Two! Three?", 3},
      {"Really?! Yes.", 2},
      {"He said \"Go.\" Then he left.", 2},
      {"(Done.) Next.", 2},
      {"**Bold.** Next.", 2},
      {"Mr. and Mrs. Brown met Dr. J. Smith at 5 p.m. on St. John's day.", 1},
      {"See Fig. 3, i.e. the next one. It helps.", 2},
      {"So am I. You too.", 2},
      {"I said no. She left.", 2},
      {"It was No. 5 of 9.", 1},
      {"We ate apples, etc. They were good.", 2},
      {"It ended at 5 p.m. The sun set.", 2},
      {"The value is 3.14. Good.", 2},
      {"1. First item\n2. Second item", 1},
      {"1. First item.\n2. Second item.", 2},
      {"It was 1999. Then came 2000.", 2},
      {"a.b.c is a name", 1},
      {"Wait... what? No.", 2},
      {"Title\n\nText", 2},
      {"one line\nnext line", 1},
      {"\u4f60\u597d\u3002\u518d\u89c1\uff01", 2},
      {"Hmm\u2026 Yes.", 2},
  };
  for (const auto& [text, sentences] : cases)
    EXPECT_EQ(ifeval::CountSentences(text), sentences) << text;
}

TEST(IfevalSplitTest, CapitalWordsEndAtPunctuation) {
  const std::vector<std::pair<std::string, uint64_t>> cases = {
      {"", 0},         {"HELLO,world", 1},     {"AT&T", 2},
      {"I'm sure", 1}, {"DON'T", 2},           {"NASA's U.S.", 2},
      {"CO-OP 42", 1}, {"(YES) No \"OK\"", 2}, {"A1 b2", 1},
  };
  for (const auto& [text, words] : cases) EXPECT_EQ(ifeval::CountCapitalWords(text), words) << text;
}

TEST(IfevalSplitTest, FindAllFindsWhatComparingEachPlaceFinds) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto text_of = [&](size_t length) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text += "ab "[random() % 3];
      return text;
    };
    const std::string text = text_of(60), part = text_of(1 + random() % 4);
    for (const bool whole : {false, true}) {
      std::vector<size_t> expected;
      for (size_t at = 0; at + part.size() <= text.size();) {
        const bool here = text.compare(at, part.size(), part) == 0;
        const auto is_word = [&](size_t i) { return i < text.size() && text[i] != ' '; };
        const bool touched = whole && ((at > 0 && is_word(at - 1)) || is_word(at + part.size()));
        if (here && !touched) expected.push_back(at);
        at += here && !touched ? part.size() : 1;
      }
      EXPECT_EQ(ifeval::FindAll(text, part, whole), expected)
          << "seed " << seed << ": '" << part << "' in '" << text << "'";
    }
  }
}

}  // namespace
}  // namespace sluice
