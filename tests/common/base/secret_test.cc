#include "common/base/secret.h"

#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <type_traits>
#include <utility>

namespace sluice {
namespace {

template <typename T>
concept Printable = requires(std::ostream& out, const T& value) { out << value; };

static_assert(!std::is_convertible_v<Secret, std::string>);
static_assert(!std::is_convertible_v<Secret, absl::string_view>);
static_assert(!std::is_convertible_v<std::string, Secret>, "a secret is made on purpose");
static_assert(!Printable<Secret>);

constexpr char kShort[] = "hush";  // Within a std::string.
constexpr char kLong[] = "a text that is too long to be stored within a std::string object";

TEST(SecretTest, ItsTextIsShownOnlyWhenAskedFor) {
  const Secret secret(kLong);
  EXPECT_EQ(secret.Reveal(), kLong);
  EXPECT_FALSE(secret.empty());
  EXPECT_TRUE(Secret().empty());
}

TEST(SecretTest, TheTextThatItIsMadeOfIsOverwritten) {
  for (const char* text : {kShort, kLong}) {
    std::string given = text;
    const char* const bytes = given.data();
    const Secret secret(std::move(given));

    EXPECT_EQ(secret.Reveal(), text);
    EXPECT_EQ(std::string(bytes, std::strlen(text)), std::string(std::strlen(text), '\0'));
  }
}

TEST(SecretTest, AMoveLeavesNothingBehindAndACopyIsWhole) {
  for (const char* text : {kShort, kLong}) {
    Secret first{std::string(text)};
    const Secret copy = first;
    const char* const bytes = first.Reveal().data();
    const Secret second = std::move(first);

    EXPECT_EQ(second.Reveal(), text);
    EXPECT_EQ(copy.Reveal(), text);
    EXPECT_TRUE(first.empty());
    EXPECT_EQ(std::string(bytes, std::strlen(text)), std::string(std::strlen(text), '\0'));
  }
}

TEST(SecretTest, AClearedOrReplacedSecretIsOverwritten) {
  Secret secret{std::string(kShort)};
  const char* const bytes = secret.Reveal().data();
  secret.Clear();
  EXPECT_TRUE(secret.empty());
  EXPECT_EQ(std::string(bytes, std::strlen(kShort)), std::string(std::strlen(kShort), '\0'));

  secret = Secret{std::string(kLong)};
  EXPECT_EQ(secret.Reveal(), kLong);
  secret = Secret();
  EXPECT_TRUE(secret.empty());
}

// The bytes are looked at while the object's memory still exists.
TEST(SecretTest, ADestroyedSecretIsOverwritten) {
  alignas(Secret) unsigned char memory[sizeof(Secret)];
  const auto* const secret = new (memory) Secret(std::string(kShort));
  const char* const bytes = secret->Reveal().data();
  ASSERT_EQ(std::memcmp(bytes, kShort, std::strlen(kShort)), 0);
  secret->~Secret();

  unsigned char after[sizeof(Secret)];
  std::memcpy(after, memory, sizeof memory);
  EXPECT_EQ(memmem(after, sizeof after, kShort, std::strlen(kShort)), nullptr);
}

}  // namespace
}  // namespace sluice
