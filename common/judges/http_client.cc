#include "common/judges/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr long kConnectMs = 10'000;

void InitCurl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

struct Body {
  std::string* text;
  size_t most;
};

size_t OnBody(char* data, size_t size, size_t count, void* of) {
  const auto* const body = static_cast<const Body*>(of);
  if (body->text->size() + size * count > body->most) return 0;  // libcurl ends the call.
  body->text->append(data, size * count);
  return size * count;
}

// libcurl calls this at least once a second; anything but 0 ends the call.
int OnProgress(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const rpc::Cancel*>(stop)->triggered() ? 1 : 0;
}

}  // namespace

HttpClient::HttpClient(std::string url, Secret key, std::string ca_file, bool loopback,
                       size_t most_reply)
    : url_(std::move(url)),
      key_(std::move(key)),
      ca_file_(std::move(ca_file)),
      loopback_(loopback),
      most_reply_(most_reply) {
  InitCurl();
}

HttpClient::~HttpClient() {
  MutexLock lock(&mu_);
  for (void* const handle : idle_) curl_easy_cleanup(handle);
}

void* HttpClient::TakeHandle() {
  MutexLock lock(&mu_);
  if (idle_.empty()) return curl_easy_init();
  void* const handle = idle_.back();
  idle_.pop_back();
  return handle;
}

void HttpClient::GiveHandle(void* handle) {
  curl_easy_reset(handle);  // Its connection stays open.
  MutexLock lock(&mu_);
  idle_.push_back(handle);
}

absl::StatusOr<HttpReply> HttpClient::Post(absl::string_view json, absl::Duration timeout,
                                           const rpc::Cancel& stop) {
  CURL* const handle = TakeHandle();
  if (handle == nullptr) return absl::ResourceExhaustedError("libcurl has no memory for a call");
  HttpReply reply;
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  list = curl_slist_append(list, "Expect:");  // Else large requests wait for leave to be sent.
  if (!key_.empty()) {
    const Secret header(absl::StrCat("Authorization: Bearer ", key_.Reveal()));
    list = curl_slist_append(list, header.Reveal().c_str());
  }
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(list,
                                                                            curl_slist_free_all);
  char error[CURL_ERROR_SIZE] = "";
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
  set(CURLOPT_URL, url_.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_POSTFIELDS, json.data());
  set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  set(CURLOPT_WRITEFUNCTION, &OnBody);
  Body body{&reply.body, most_reply_};
  set(CURLOPT_WRITEDATA, &body);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &OnProgress);
  set(CURLOPT_XFERINFODATA, &stop);
  // libcurl would send even calls of loopback, with the key, to the proxy of the environment.
  if (loopback_) set(CURLOPT_PROXY, "");
  set(CURLOPT_QUICK_EXIT, 1L);  // Do not wait for a name server at the end of a call.
  set(CURLOPT_NOSIGNAL, 1L);    // Signals are the daemon's.
  set(CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<int64_t>(1, timeout / absl::Milliseconds(1))));
  set(CURLOPT_ERRORBUFFER, error);
  if (!ca_file_.empty()) set(CURLOPT_CAINFO, ca_file_.c_str());

  const CURLcode code = curl_easy_perform(handle);
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &reply.code);
  curl_off_t seconds = 0;
  curl_easy_getinfo(handle, CURLINFO_RETRY_AFTER, &seconds);
  reply.retry_after = absl::Seconds(seconds);
  GiveHandle(handle);

  const std::string what =
      absl::StrCat(url_, ": ", error[0] != '\0' ? error : curl_easy_strerror(code));
  switch (code) {
    case CURLE_OK: return reply;
    case CURLE_ABORTED_BY_CALLBACK: return absl::CancelledError(what);
    case CURLE_OPERATION_TIMEDOUT: return absl::DeadlineExceededError(what);
    case CURLE_WRITE_ERROR:
      return absl::OutOfRangeError(
          absl::StrCat(url_, ": the reply is above ", most_reply_ >> 20, " MiB"));
    default: return absl::UnavailableError(what);
  }
}

}  // namespace sluice
