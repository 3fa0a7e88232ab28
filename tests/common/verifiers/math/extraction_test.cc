#include <gtest/gtest.h>

#include "tests/common/verifiers/math/cases.h"

namespace sluice::math {
namespace {

TEST(ExtractionTest, TheLastClosedBoxDecides) {
  EXPECT_EQ(Extracted("\\boxed{1}. Then \\boxed{2}."), "2");
  EXPECT_EQ(Extracted("\\boxed{\\frac{1}{2}} and the answer is 3"), "\\frac{1}{2}");
  EXPECT_EQ(Extracted("\\boxed{7} \\boxed{8"), "7");
  EXPECT_EQ(Extracted("\\fbox {7}"), "7");
  EXPECT_EQ(Extracted("\\boxed{\\boxed{7}}"), "\\boxed{7}");
  EXPECT_EQ(JudgeCase("5", "\\boxed{} 5"), Outcome::kUnreadable);
  EXPECT_EQ(JudgeCase("5", "\\boxed{what?} 5"), Outcome::kUnreadable);
}

TEST(ExtractionTest, BoxesOfOneSentenceAreOneList) {
  EXPECT_TRUE(Equal("1, 2", "\\boxed{1} and \\boxed{2}"));
  EXPECT_TRUE(Equal("2", "\\boxed{1}, no, \\boxed{2}"));
  EXPECT_TRUE(Equal("2", "\\boxed{1}, wait: \\boxed{2}"));
  EXPECT_TRUE(Equal("2", "first \\boxed{wrong}, then \\boxed{2}"));
  EXPECT_FALSE(Equal("2", "\\boxed{1} or \\boxed{2}"));
}

TEST(ExtractionTest, ASentenceWithTheFinalAnswerBehindTheBoxComesFirst) {
  EXPECT_EQ(Extracted("\\boxed{255}. In all: the final answer is $10,455$."), "$10,455$");
  EXPECT_EQ(Extracted("\\boxed{255}. In all: the final answer is $10,455$.", Extraction::kBoxed),
            "255");
}

TEST(ExtractionTest, TagsAndMarkersFollow) {
  EXPECT_EQ(Extracted("<answer>1</answer> <answer> 2 </answer> 3"), "2");
  EXPECT_EQ(Extracted("#### 1\n#### 1,234\n5"), "1,234");
  EXPECT_EQ(Extracted("Answer: 41 was wrong.\nAnswer: 42"), "42");
  EXPECT_EQ(Extracted("Réponse: il y a 220 $ d'ici 12 mois."), "220");
  EXPECT_EQ(Extracted("The answer is 2x+3."), "2x+3");
  EXPECT_EQ(Extracted("The answer is the largest $n$, which is 34."), "34");
  EXPECT_EQ(Extracted("8 * 3 = 24\nA: 24"), "24");
  EXPECT_EQ(Extracted("answer: 24", Extraction::kTagged), "(none)");
  EXPECT_EQ(Extracted("#### 24", Extraction::kBoxed), "(none)");
}

TEST(ExtractionTest, TheLastFormulaOrNumberIsTheLastResort) {
  EXPECT_EQ(Extracted("We get $x = 3$ at once"), "x = 3");
  EXPECT_EQ(Extracted("So there are 12 or 13 left over"), "12 \\text{and} 13");
  EXPECT_EQ(Extracted("Il y en a **25%**."), "25%");
  EXPECT_EQ(Extracted("it costs 1,000.99m²"), "1,000.99");
  EXPECT_EQ(Extracted("72000 / 18 = 4000千克"), "4000");
  EXPECT_FALSE(Equal("3", "so it is x + 3 there")) << "3 is a part of something";
  EXPECT_FALSE(Equal("3", "so it is 3x there"));
  EXPECT_EQ(Extracted("see AZYUK2A"), "\\text{see AZYUK2A}");
  EXPECT_EQ(Extracted(""), "(none)");
}

TEST(ExtractionTest, SeveralAnswersInOneAreNotTheGold) {
  for (const char* const text :
       {"\\boxed{3 \\text{ or } 4}", "The answer is 3 or 4.", "The answer is $3$ or $4$.",
        "\\boxed{3, 4}", "It is 3 or 4", "The answer is 3 or maybe 4.",
        "The answer is either 3 or 4.", "<answer>3 or 4</answer>", "#### 3 or 4", "\\boxed{\\pm 3}",
        "\\boxed{[3, 4]}", "\\boxed{3;4}"}) {
    EXPECT_FALSE(Equal("3", text)) << text;
    EXPECT_FALSE(Equal("4", text)) << text;
  }
}

TEST(ExtractionTest, ADeniedAnswerIsNone) { EXPECT_FALSE(Equal("7", "The answer is not 7.")); }

TEST(ExtractionTest, WhatFollowsTheEndOfTheTurnIsNotRead) {
  EXPECT_EQ(Extracted("42<|im_end|>\n<|im_start|>user 43"), "42");
}

TEST(ExtractionTest, DigitsOfOtherScriptsAndOperatorsBeyondAsciiAreRead) {
  EXPECT_TRUE(Equal("123", "\\boxed{١٢٣}"));
  EXPECT_TRUE(Equal("123", "\\boxed{１２３}"));
  EXPECT_TRUE(Equal("-3", "\\boxed{−3}"));
  EXPECT_TRUE(Equal("12", "\\boxed{1\u200b2}"));
  EXPECT_TRUE(Equal("x^{12}", "\\boxed{x¹²}"));
  EXPECT_TRUE(Equal("1/2", "\\boxed{½}"));
  EXPECT_TRUE(Equal("2\\sqrt{3}", "\\boxed{2√3}"));
  EXPECT_TRUE(Equal("x\\le 5", "\\boxed{x ≤ 5}"));
  EXPECT_FALSE(Equal("12",
                     "\\boxed{1\xff"
                     "2}"));
}

}  // namespace
}  // namespace sluice::math
