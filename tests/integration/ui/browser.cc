#include "tests/integration/ui/browser.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::integration {
namespace {

using nlohmann::json;

constexpr char kChromium[] = "/usr/bin/chromium";
// The child's descriptors that --remote-debugging-pipe reads commands from and writes answers to.
constexpr int kCommands = 3, kAnswers = 4;

// A pipe whose ends the child gets under other numbers, so they must not be among these.
absl::Status MakePipe(int* read_end, int* write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  *read_end = fcntl(ends[0], F_DUPFD_CLOEXEC, kAnswers + 1);
  *write_end = fcntl(ends[1], F_DUPFD_CLOEXEC, kAnswers + 1);
  close(ends[0]);
  close(ends[1]);
  return absl::OkStatus();
}

// Starts the program with the two pipes and its messages in a file. It dies with this thread.
absl::StatusOr<pid_t> StartWithPipes(std::vector<std::string> args, int commands, int answers,
                                     const std::string& log) {
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const int log_fd = open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

  // Between fork and exec only async-signal-safe calls: this process has threads.
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    dup2(commands, kCommands);
    dup2(answers, kAnswers);
    execv(argv[0], argv.data());
    _exit(127);
  }
  const int error = errno;
  close(log_fd);
  if (pid < 0) return ErrnoStatus(error, "fork");
  return pid;
}

}  // namespace

bool Browser::Exists() { return PathExists(kChromium); }

absl::StatusOr<std::unique_ptr<Browser>> Browser::Start(int width, int height) {
  std::unique_ptr<Browser> browser(new Browser());
  const char* const tmp = getenv("TMPDIR");
  std::string dir = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/sluice-browser-XXXXXX");
  if (mkdtemp(dir.data()) == nullptr) return ErrnoStatus(errno, dir);
  browser->dir_ = dir;

  int commands = -1, answers = -1;
  SLUICE_RETURN_IF_ERROR(MakePipe(&commands, &browser->to_));
  SLUICE_RETURN_IF_ERROR(MakePipe(&browser->from_, &answers));
  const absl::StatusOr<pid_t> pid = StartWithPipes(
      {kChromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
       "--disable-background-networking", "--disable-component-update", "--disable-sync",
       "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
       absl::StrCat("--user-data-dir=", dir), absl::StrCat("--window-size=", width, ",", height),
       "about:blank"},
      commands, answers, dir + "/browser.log");
  close(commands);
  close(answers);
  SLUICE_RETURN_IF_ERROR(pid.status());
  browser->pid_ = *pid;

  SLUICE_ASSIGN_OR_RETURN(const json targets, browser->Command("Target.getTargets", {}));
  for (const json& target : targets["targetInfos"]) {
    if (target["type"] != "page") continue;
    SLUICE_ASSIGN_OR_RETURN(const json attached, browser->Command("Target.attachToTarget",
                                                                  {{"targetId", target["targetId"]},
                                                                   {"flatten", true}}));
    browser->session_ = attached["sessionId"];
    break;
  }
  if (browser->session_.empty()) return absl::InternalError("the browser has no page");
  for (const char* domain : {"Page.enable", "Runtime.enable", "Log.enable"})
    SLUICE_RETURN_IF_ERROR(browser->Command(domain, {}).status());
  return browser;
}

Browser::~Browser() {
  // Its own children end when it does.
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  (void)RemoveTree(dir_);
}

absl::StatusOr<json> Browser::ReadMessage(absl::Time deadline) {
  // Each message ends with a zero byte.
  while (buffer_.find('\0') == std::string::npos) {
    const int64_t left =
        std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0, 1 << 30);
    pollfd entry{.fd = from_, .events = POLLIN};
    if (poll(&entry, 1, static_cast<int>(left)) == 0)
      return absl::DeadlineExceededError("the browser does not answer");
    char bytes[65536];
    const ssize_t n = read(from_, bytes, sizeof bytes);
    if (n == 0) return absl::UnavailableError("the browser has ended");
    if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
  }
  const size_t end = buffer_.find('\0');
  const json message = json::parse(buffer_.substr(0, end));
  buffer_.erase(0, end + 1);
  return message;
}

void Browser::OnEvent(const json& message) {
  const std::string method = message.value("method", "");
  if (method == "Page.loadEventFired") loaded_ = true;
  if (method == "Runtime.exceptionThrown")
    absl::StrAppend(&errors_, message["params"]["exceptionDetails"].dump(), "\n");
  if (method != "Log.entryAdded") return;
  const json& entry = message["params"]["entry"];
  // That a request fails is part of the tests.
  if (entry.value("level", "") == "error" && entry.value("source", "") != "network")
    absl::StrAppend(&errors_, entry.value("text", ""), "\n");
}

absl::StatusOr<json> Browser::Command(const std::string& method, const json& params,
                                      absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  json command = {{"id", ++last_id_},
                  {"method", method},
                  {"params", params.is_null() ? json::object() : params}};
  if (!session_.empty()) command["sessionId"] = session_;
  const std::string text = command.dump();
  const ssize_t bytes = static_cast<ssize_t>(text.size() + 1);  // With the zero byte.
  if (write(to_, text.c_str(), text.size() + 1) != bytes)
    return ErrnoStatus(errno, "cannot write to the browser");

  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const json message, ReadMessage(deadline));
    if (message.value("id", 0) != last_id_) {
      OnEvent(message);
      continue;
    }
    if (message.contains("error"))
      return absl::InternalError(absl::StrCat(method, ": ", message["error"].dump()));
    return message["result"];
  }
}

absl::Status Browser::Open(const std::string& url) {
  loaded_ = false;
  errors_.clear();
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  SLUICE_ASSIGN_OR_RETURN(const json went, Command("Page.navigate", {{"url", url}}));
  if (went.contains("errorText"))
    return absl::UnavailableError(absl::StrCat(url, ": ", went["errorText"].get<std::string>()));
  while (!loaded_) {
    SLUICE_ASSIGN_OR_RETURN(const json message, ReadMessage(deadline));
    OnEvent(message);
  }
  return absl::OkStatus();
}

absl::StatusOr<json> Browser::Evaluate(const std::string& expression) {
  SLUICE_ASSIGN_OR_RETURN(
      const json answer,
      Command("Runtime.evaluate",
              {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}}));
  if (answer.contains("exceptionDetails"))
    return absl::InternalError(absl::StrCat(expression, ": ", answer["exceptionDetails"].dump()));
  return answer["result"].value("value", json());
}

absl::Status Browser::Await(const std::string& expression, absl::Duration timeout) {
  // The page itself looks again after each change, so nothing here waits in steps.
  const std::string looking = absl::StrCat(
      "new Promise((done) => { const look = () => { let now = false; try { now = Boolean(",
      expression,
      "); } catch {} if (now) { watch.disconnect(); clearTimeout(limit); done(true); } };",
      " const watch = new MutationObserver(look);",
      " watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: "
      "true});",
      " const limit = setTimeout(() => { watch.disconnect(); done(false); }, ",
      absl::ToInt64Milliseconds(timeout), "); look(); })");
  SLUICE_ASSIGN_OR_RETURN(const json done, Evaluate(looking));
  if (done == true) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(expression, " is not true on the page:\n", Text()));
}

std::string Browser::Text() {
  const absl::StatusOr<json> text = Evaluate("document.body.innerText");
  return text.ok() && text->is_string() ? text->get<std::string>() : text.status().ToString();
}

absl::Status Browser::SetDark(bool dark) {
  return Command("Emulation.setEmulatedMedia",
                 {{"features", json::array({{{"name", "prefers-color-scheme"},
                                             {"value", dark ? "dark" : "light"}}})}})
      .status();
}

absl::Status Browser::Screenshot(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(
      const json shot,
      Command("Page.captureScreenshot", {{"format", "png"}, {"captureBeyondViewport", true}}));
  std::string bytes;
  if (!absl::Base64Unescape(shot["data"].get<std::string>(), &bytes))
    return absl::InternalError("the browser's picture is not base64");
  return WriteFileAtomic(path, bytes);
}

}  // namespace sluice::integration
