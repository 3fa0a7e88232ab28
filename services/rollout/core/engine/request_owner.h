#pragma once

#include <cstdint>

namespace sluice {

// Who added a request to the engine. The engine's events carry only the request's id, so the owner
// is part of the id: its upper two bits. Ids of different owners can therefore never be equal.
enum class RequestOwner : uint8_t {
  kJob = 0,       // The job's own work: its events go to the streamer.
  kRescorer = 1,  // Rescorer, which checks the engine.
  kGuest = 2,     // Callers of the HTTP API and of EngineService.
  kProbe = 3,     // VersionProbe, which tries a version.
};

// The lowest id of an owner's requests; the owner counts on from there.
constexpr uint64_t FirstRequestId(RequestOwner owner) { return uint64_t(owner) << 62; }
constexpr RequestOwner OwnerOf(uint64_t request) {
  return static_cast<RequestOwner>(request >> 62);
}

}  // namespace sluice
