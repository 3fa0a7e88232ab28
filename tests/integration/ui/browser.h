#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::integration {

// A headless Chromium of Debian's package with one page. The test speaks the DevTools protocol with
// it over a pipe, so no port is open. It has a profile folder of its own, which is removed at the
// end, and asks nothing outside of this machine.
//
// Not thread-safe. It dies with the thread that started it.
class Browser {
 public:
  // Whether there is a Chromium. A test without one is to be skipped.
  static bool Exists();
  static absl::StatusOr<std::unique_ptr<Browser>> Start(int width, int height);
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // Goes to the page, and waits until it is loaded.
  absl::Status Open(const std::string& url);
  // What a JavaScript expression is on the page. INTERNAL: it throws.
  absl::StatusOr<nlohmann::json> Evaluate(const std::string& expression);
  // Waits until the expression is true. DEADLINE_EXCEEDED: it is not; the message has the page's
  // text.
  absl::Status Await(const std::string& expression, absl::Duration timeout);
  // The text that a person sees.
  std::string Text();

  // The page as a person sees it who prefers dark colours, or light ones.
  absl::Status SetDark(bool dark);
  // Writes a PNG of the whole page.
  absl::Status Screenshot(const std::string& path);
  // What the page has logged as errors since it was opened, such as blocked scripts. One per line.
  std::string errors() const { return errors_; }

 private:
  Browser() = default;
  // Sends a command and returns its result.
  absl::StatusOr<nlohmann::json> Command(const std::string& method, const nlohmann::json& params,
                                         absl::Duration timeout = absl::Minutes(2));
  absl::StatusOr<nlohmann::json> ReadMessage(absl::Time deadline);
  void OnEvent(const nlohmann::json& message);

  std::string dir_;
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;  // Pipes to and from the browser.
  std::string buffer_;
  std::string session_;  // Of the page.
  int last_id_ = 0;
  bool loaded_ = false;
  std::string errors_;
};

}  // namespace sluice::integration
