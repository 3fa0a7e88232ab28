#include "common/ucx/ucx.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/ucx/library.h"

namespace sluice {
namespace {

using ucx::Library;

// A connection is closed in this time, or given up with the worker.
constexpr absl::Duration kClose = absl::Seconds(1);

// A context of UCX with one worker, and memory. One thread at a time uses it, except for
// Interrupt() and Allocate().
class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Make(const std::string& devices) {
    SLUICE_ASSIGN_OR_RETURN(const Library* const library, ucx::LoadLibrary());
    auto worker = std::make_unique<Worker>(*library, devices);
    SLUICE_RETURN_IF_ERROR(worker->Init(devices));
    return worker;
  }
  Worker(const Library& library, const std::string& devices)
      : library_(library), in_shared_memory_(devices == kUcxSharedMemory) {}
  ~Worker() {
    // Nobody reads or writes the memory any more when the worker is gone.
    if (worker_ != nullptr) library_.ucp_worker_destroy(worker_);
    for (const Memory& memory : memory_) {
      if (memory.handle != nullptr) library_.ucp_mem_unmap(context_, memory.handle);
      if (memory.own != MAP_FAILED) munmap(memory.own, memory.bytes);
    }
    if (context_ != nullptr) library_.ucp_cleanup(context_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Library& library() const { return library_; }
  bool in_shared_memory() const { return in_shared_memory_; }
  ucp_worker_h handle() const { return worker_; }
  const std::string& address() const { return address_; }

  absl::Status Check(ucs_status_t status, const char* call, absl::StatusCode code) const {
    if (status == UCS_OK) return absl::OkStatus();
    return absl::Status(code,
                        absl::StrCat("UCX: ", call, ": ", library_.ucs_status_string(status)));
  }

  struct Memory {
    ucp_mem_h handle = nullptr;
    void* own = MAP_FAILED;  // The memory, if UCX has not made it.
    char* data = nullptr;
    uint64_t bytes = 0;
  };
  // Makes memory and registers it. It lives as long as the worker. Thread-safe.
  absl::StatusOr<Memory> Allocate(uint64_t bytes) {
    ucp_mem_map_params_t params = {};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.length = bytes;
    MutexLock lock(&mu_);
    Memory& memory = memory_.emplace_back(Memory{.bytes = bytes});
    if (in_shared_memory_) {
      // Only memory that UCX makes itself can be mapped by others.
      params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_FLAGS;
      params.flags = UCP_MEM_MAP_ALLOCATE;
    } else {
      // UCX might take it from /dev/shm, which is small in containers.
      memory.own = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory.own == MAP_FAILED)
        return absl::ResourceExhaustedError(absl::StrCat("there are no ", bytes, " bytes"));
      params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
      params.address = memory.own;
    }
    SLUICE_RETURN_IF_ERROR(Check(library_.ucp_mem_map(context_, &params, &memory.handle),
                                 "ucp_mem_map", absl::StatusCode::kResourceExhausted));

    ucp_mem_attr_t attributes = {};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    SLUICE_RETURN_IF_ERROR(Check(library_.ucp_mem_query(memory.handle, &attributes),
                                 "ucp_mem_query", absl::StatusCode::kResourceExhausted));
    memory.data = static_cast<char*>(attributes.address);
    return memory;
  }

  // The bytes that let others read the memory. Thread-safe.
  absl::StatusOr<std::string> PackKey(const Memory& memory) const {
    void* packed = nullptr;
    size_t bytes = 0;
    SLUICE_RETURN_IF_ERROR(Check(library_.ucp_rkey_pack(context_, memory.handle, &packed, &bytes),
                                 "ucp_rkey_pack", absl::StatusCode::kResourceExhausted));
    std::string key(static_cast<const char*>(packed), bytes);
    library_.ucp_rkey_buffer_release(packed);
    return key;
  }

  // Does what there is to do, or waits until there is something, but not longer than `limit`.
  void Progress(absl::Duration limit) {
    if (library_.ucp_worker_progress(worker_) != 0) return;
    // Busy: something has come, or Interrupt() was called.
    if (library_.ucp_worker_arm(worker_) != UCS_OK) return;
    pollfd ready = {event_, POLLIN, 0};
    const absl::Duration wait = std::clamp(limit, absl::ZeroDuration(), absl::Seconds(60));
    poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
  }

  // Ends waits, now and later. From any thread.
  void Interrupt() {
    interrupted_ = true;
    library_.ucp_worker_signal(worker_);
  }
  bool interrupted() const { return interrupted_; }

 private:
  absl::Status Init(const std::string& devices) {
    constexpr auto kUnusable = absl::StatusCode::kFailedPrecondition;
    ucp_config_t* config = nullptr;
    SLUICE_RETURN_IF_ERROR(
        Check(library_.ucp_config_read(nullptr, nullptr, &config), "ucp_config_read", kUnusable));
    const absl::Cleanup release = [&] { library_.ucp_config_release(config); };
    const auto set = [&](const char* key, const char* value) {
      return Check(library_.ucp_config_modify(config, key, value), "ucp_config_modify", kUnusable);
    };
    if (in_shared_memory_) {
      SLUICE_RETURN_IF_ERROR(set("TLS", "shm"));
    } else {
      SLUICE_RETURN_IF_ERROR(set("NET_DEVICES", devices.c_str()));
      // Those that read memory by themselves; see ucx.h.
      const char* const given = getenv("UCX_TLS");
      SLUICE_RETURN_IF_ERROR(set("TLS", given == nullptr ? "rc,dc" : given));
    }

    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;  // Allocate() is called while another thread uses the worker.
    SLUICE_RETURN_IF_ERROR(
        Check(library_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_),
              "ucp_init", kUnusable));

    ucp_worker_params_t of_worker = {};
    of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    of_worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    SLUICE_RETURN_IF_ERROR(Check(library_.ucp_worker_create(context_, &of_worker, &worker_),
                                 "ucp_worker_create", kUnusable));
    SLUICE_RETURN_IF_ERROR(
        Check(library_.ucp_worker_get_efd(worker_, &event_), "ucp_worker_get_efd", kUnusable));

    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    SLUICE_RETURN_IF_ERROR(Check(library_.ucp_worker_get_address(worker_, &address, &bytes),
                                 "ucp_worker_get_address", kUnusable));
    address_.assign(reinterpret_cast<const char*>(address), bytes);
    library_.ucp_worker_release_address(worker_, address);
    return absl::OkStatus();
  }

  const Library& library_;
  const bool in_shared_memory_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_ = -1;  // Readable when there is something to do. It belongs to the worker.
  std::string address_;
  std::atomic<bool> interrupted_ = false;

  Mutex mu_;
  std::vector<Memory> memory_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

class UcxHost::Impl {
 public:
  explicit Impl(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {
    thread_ = std::thread([this] {
      while (!worker_->interrupted()) worker_->Progress(absl::InfiniteDuration());
    });
    pthread_setname_np(thread_.native_handle(), "sluice-ucx");
  }
  ~Impl() {
    worker_->Interrupt();
    thread_.join();
  }

  const std::string& worker() const { return worker_->address(); }

  absl::StatusOr<Memory> Allocate(uint64_t bytes) {
    SLUICE_ASSIGN_OR_RETURN(const Worker::Memory memory, worker_->Allocate(bytes));
    SLUICE_ASSIGN_OR_RETURN(std::string key, worker_->PackKey(memory));
    return Memory{.data = memory.data, .bytes = bytes, .key = std::move(key)};
  }

 private:
  const std::unique_ptr<Worker> worker_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<UcxHost>> UcxHost::Start(const std::string& devices) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::Make(devices));
  return std::unique_ptr<UcxHost>(new UcxHost(std::make_unique<Impl>(std::move(worker))));
}
UcxHost::UcxHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UcxHost::~UcxHost() = default;
const std::string& UcxHost::worker() const { return impl_->worker(); }
absl::StatusOr<UcxHost::Memory> UcxHost::Allocate(uint64_t bytes) { return impl_->Allocate(bytes); }

class UcxReader::Impl {
 public:
  Impl(std::unique_ptr<Worker> worker, std::string host)
      : worker_(std::move(worker)), host_(std::move(host)) {}
  ~Impl() {
    const Library& library = worker_->library();
    for (const auto& [unused, key] : keys_) library.ucp_rkey_destroy(key);
    if (endpoint_ != nullptr) {
      ucp_request_param_t param = {};
      if (handles_failures()) {
        // What is still to come is cancelled, so that nothing is written to `landing_` any more.
        param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      }
      Finish(library.ucp_ep_close_nbx(endpoint_, &param));
    }
    Finish(get_);
  }

  absl::Status Connect(uint64_t most_bytes) {
    SLUICE_ASSIGN_OR_RETURN(landing_, worker_->Allocate(most_bytes));
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(host_.data());
    params.err_mode = handles_failures() ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    // The requests that are open end with the error, so the handler has nothing to do.
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    return worker_->Check(worker_->library().ucp_ep_create(worker_->handle(), &params, &endpoint_),
                          "ucp_ep_create", absl::StatusCode::kUnavailable);
  }

  const std::string& host() const { return host_; }
  void Interrupt() { worker_->Interrupt(); }

  absl::StatusOr<absl::string_view> Read(const UcxPlace& place, absl::Duration deadline) {
    if (place.worker != host_ || place.bytes > landing_.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(place.bytes, " bytes of ", place.worker == host_ ? "the" : "another",
                       " worker were to be read; up to ", landing_.bytes, " of this one can be"));
    }
    if (worker_->interrupted()) return absl::CancelledError("the read was interrupted");
    const Library& library = worker_->library();
    SLUICE_ASSIGN_OR_RETURN(const ucp_rkey_h key, FindKey(place.key));
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
    param.memh = landing_.handle;
    get_ = library.ucp_get_nbx(endpoint_, landing_.data, place.bytes, place.address, key, &param);
    ucs_status_t status;
    while (true) {
      status = StatusOf(get_);
      const absl::Duration left = deadline - Clock::Real()->Monotonic();
      // What has come too late may be something else.
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat(place.bytes, " bytes have not come in their time"));
      }
      if (status != UCS_INPROGRESS) break;
      if (worker_->interrupted()) return absl::CancelledError("the read was interrupted");
      worker_->Progress(left);
    }
    Free(std::exchange(get_, nullptr));
    SLUICE_RETURN_IF_ERROR(worker_->Check(status, "ucp_get_nbx", absl::StatusCode::kUnavailable));
    return absl::string_view(landing_.data, place.bytes);
  }

 private:
  // UCX's shared memory knows nothing of peers that die, and needs nothing of them either: what a
  // dead process has shared can still be read.
  bool handles_failures() const { return !worker_->in_shared_memory(); }

  // The memory of a host has few keys, each for many places.
  absl::StatusOr<ucp_rkey_h> FindKey(const std::string& packed) {
    if (const auto it = keys_.find(packed); it != keys_.end()) return it->second;
    ucp_rkey_h key = nullptr;
    SLUICE_RETURN_IF_ERROR(
        worker_->Check(worker_->library().ucp_ep_rkey_unpack(endpoint_, packed.data(), &key),
                       "ucp_ep_rkey_unpack", absl::StatusCode::kInvalidArgument));
    keys_[packed] = key;
    return key;
  }

  // Of a request, which is null if it was done at once.
  ucs_status_t StatusOf(void* request) const {
    if (request == nullptr) return UCS_OK;
    if (UCS_PTR_IS_ERR(request)) return UCS_PTR_RAW_STATUS(request);
    return worker_->library().ucp_request_check_status(request);
  }
  void Free(void* request) const {
    if (request != nullptr && !UCS_PTR_IS_ERR(request))
      worker_->library().ucp_request_free(request);
  }
  // Waits for a request for a short time.
  void Finish(void* request) {
    const absl::Duration until = Clock::Real()->Monotonic() + kClose;
    while (StatusOf(request) == UCS_INPROGRESS && Clock::Real()->Monotonic() < until)
      worker_->Progress(until - Clock::Real()->Monotonic());
    Free(request);
  }

  const std::unique_ptr<Worker> worker_;
  const std::string host_;
  Worker::Memory landing_;
  ucp_ep_h endpoint_ = nullptr;
  std::map<std::string, ucp_rkey_h> keys_;
  void* get_ = nullptr;  // The request that is open.
};

absl::StatusOr<std::unique_ptr<UcxReader>> UcxReader::Connect(const std::string& devices,
                                                              const std::string& worker,
                                                              uint64_t most_bytes) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Worker> own, Worker::Make(devices));
  auto impl = std::make_unique<Impl>(std::move(own), worker);
  SLUICE_RETURN_IF_ERROR(impl->Connect(most_bytes));
  return std::unique_ptr<UcxReader>(new UcxReader(std::move(impl)));
}
UcxReader::UcxReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UcxReader::~UcxReader() = default;
const std::string& UcxReader::worker() const { return impl_->host(); }
absl::StatusOr<absl::string_view> UcxReader::Read(const UcxPlace& place, absl::Duration deadline) {
  return impl_->Read(place, deadline);
}
void UcxReader::Interrupt() { impl_->Interrupt(); }

namespace {

absl::Status ReadOwnMemory(const std::string& devices) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<UcxHost> host, UcxHost::Start(devices));
  SLUICE_ASSIGN_OR_RETURN(const UcxHost::Memory memory, host->Allocate(1));
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<UcxReader> reader,
                          UcxReader::Connect(devices, host->worker(), 1));
  return reader
      ->Read({.worker = host->worker(),
              .key = memory.key,
              .address = reinterpret_cast<uintptr_t>(memory.data),
              .bytes = 1},
             Clock::Real()->Monotonic() + absl::Seconds(10))
      .status();
}

}  // namespace

absl::Status TryUcx(const std::string& devices) {
  const absl::Status read = ReadOwnMemory(devices);
  if (read.ok() || absl::IsUnimplemented(read)) return read;
  return absl::FailedPreconditionError(
      absl::StrCat("no memory can be read over ", devices, " (", read.message(),
                   "); `ucx_info -d` of the package ucx-utils lists the devices of this host"));
}

}  // namespace sluice
