// Status codes of the library, told apart by range: its own refusals, CUTLASS's, the CUDA runtime's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "api.h"

namespace loadproof {

using Status = int32_t;

constexpr int kAlignmentBytes = 16;  // of TMA: addresses, and strides in bytes
constexpr int kWidthMultiple = 16;   // of K and N, in elements
constexpr Status kCutlassBase = 100;
constexpr Status kCudaBase = 1000;

enum class Refusal : Status {
  kNullPointer = 1,
  kShape,
  kWidths,
  kStride,
  kAlignment,
  kScaleAlignment,
  kOutType,
  kArchitecture,
  kWorkspace,
};

constexpr Status success() { return 0; }
constexpr Status refusal(Refusal reason) { return static_cast<Status>(reason); }
template <class CutlassStatus>
constexpr Status from_cutlass(CutlassStatus status) {
  return kCutlassBase + static_cast<Status>(status);
}
constexpr Status from_cuda(cudaError_t error) { return kCudaBase + static_cast<Status>(error); }

// One entry per configuration. Each lives in a translation unit of its own, so that they build in parallel.
struct Configuration {
  char const* name;
  int64_t most_rows;
  Status (*run)(LoadproofScaledMm const&, int multiprocessors, void* workspace, size_t bytes, cudaStream_t);
  Status (*workspace)(LoadproofScaledMm const&, int multiprocessors, size_t* bytes);
};

extern Configuration const kNarrow;
extern Configuration const kMiddle;
extern Configuration const kWide;

}  // namespace loadproof
