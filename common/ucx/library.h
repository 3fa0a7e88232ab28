#pragma once

#include <ucp/api/ucp.h>

#include "absl/status/statusor.h"

namespace sluice::ucx {

#define SLUICE_UCX_FUNCTIONS(F) \
  F(ucp_cleanup)                \
  F(ucp_config_modify)          \
  F(ucp_config_read)            \
  F(ucp_config_release)         \
  F(ucp_ep_close_nbx)           \
  F(ucp_ep_create)              \
  F(ucp_ep_rkey_unpack)         \
  F(ucp_get_nbx)                \
  F(ucp_init_version)           \
  F(ucp_mem_map)                \
  F(ucp_mem_query)              \
  F(ucp_mem_unmap)              \
  F(ucp_request_check_status)   \
  F(ucp_request_free)           \
  F(ucp_rkey_buffer_release)    \
  F(ucp_rkey_destroy)           \
  F(ucp_rkey_pack)              \
  F(ucp_worker_arm)             \
  F(ucp_worker_create)          \
  F(ucp_worker_destroy)         \
  F(ucp_worker_get_address)     \
  F(ucp_worker_get_efd)         \
  F(ucp_worker_progress)        \
  F(ucp_worker_release_address) \
  F(ucp_worker_signal)          \
  F(ucs_status_string)

// The functions of libucp. Programs are not linked to it: few jobs use UCX, most machines have no
// libucp, and it changes a process when it is loaded. It stays loaded.
struct Library {
#define SLUICE_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  SLUICE_UCX_FUNCTIONS(SLUICE_UCX_MEMBER)
#undef SLUICE_UCX_MEMBER
};

// Loads the library at the first call. Thread-safe.
// FAILED_PRECONDITION: it cannot be loaded, or is another version than that of the build.
absl::StatusOr<const Library*> LoadLibrary();

}  // namespace sluice::ucx
