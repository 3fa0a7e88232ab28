#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::daemon {

// A GET or HEAD request to the HTTP server for operators.
struct HttpRequest {
  std::string path;   // Decoded, without the query.
  std::string query;  // What follows the "?", not decoded.
  std::string host;   // The header Host; empty if there is none.
};

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};  // Further ones.
};

// Pages that a daemon serves beside /metrics, /livez and /readyz.
struct HttpRoute {
  std::string path;  // Such as "/ui". The route answers for this path and all paths below it.
  // Called from the HTTP server's threads, several at once. It should answer within seconds,
  // because /livez needs one of these threads too.
  std::function<HttpResponse(const HttpRequest&)> answer;
};

}  // namespace sluice::daemon
