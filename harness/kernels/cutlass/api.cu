// The C interface: refuses what the kernels cannot take, chooses the configuration, puts statuses into words.
#include "api.h"

#include <cutlass/cutlass.h>

#include <limits>

#include "status.h"

namespace loadproof {
namespace {

// By rows, fewest first.
Configuration const* const kConfigurations[] = {&kNarrow, &kMiddle, &kWide};
constexpr int32_t kConfigurationCount = sizeof(kConfigurations) / sizeof(kConfigurations[0]);

bool aligned(void const* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

bool stride_fits(int64_t stride, int64_t width, size_t element_bytes) {
  return stride >= width && stride * static_cast<int64_t>(element_bytes) % kAlignmentBytes == 0;
}

Status check(LoadproofScaledMm const& p) {
  constexpr size_t out_bytes = 2;
  if (p.out_type != kLoadproofBfloat16 && p.out_type != kLoadproofFloat16) return refusal(Refusal::kOutType);
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (p.m < 0 || p.n <= 0 || p.k <= 0 || p.m > most || p.n > most || p.k > most) return refusal(Refusal::kShape);
  if (p.n % kWidthMultiple != 0 || p.k % kWidthMultiple != 0) return refusal(Refusal::kWidths);
  if (p.m == 0) return success();
  if (!p.a || !p.b || !p.d || !p.scale_a || !p.scale_b) return refusal(Refusal::kNullPointer);
  if (!stride_fits(p.lda, p.k, 1) || !stride_fits(p.ldb, p.k, 1) || !stride_fits(p.ldd, p.n, out_bytes)) {
    return refusal(Refusal::kStride);
  }
  if (!aligned(p.a, kAlignmentBytes) || !aligned(p.b, kAlignmentBytes) || !aligned(p.d, kAlignmentBytes)) {
    return refusal(Refusal::kAlignment);
  }
  if (!aligned(p.scale_a, sizeof(float)) || !aligned(p.scale_b, sizeof(float)) || !aligned(p.bias, out_bytes)) {
    return refusal(Refusal::kScaleAlignment);
  }
  return success();
}

// Of the calling thread's device. A kernel built for sm_90a runs on compute capability 9.0 and nowhere else.
Status device_multiprocessors(int* count) {
  int device = 0, major = 0, minor = 0;
  for (cudaError_t error :
       {cudaGetDevice(&device), cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device)}) {
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return from_cuda(error);
    }
  }
  return major == 9 && minor == 0 ? success() : refusal(Refusal::kArchitecture);
}

char const* words(Refusal reason) {
  switch (reason) {
    case Refusal::kNullPointer: return "a, b, d, scale_a or scale_b is null";
    case Refusal::kShape: return "m is negative, n or k is not positive, or one of them is above 2^31 - 1";
    case Refusal::kWidths: return "n or k is not a multiple of 16";
    case Refusal::kStride: return "a stride is below the width, or not a multiple of 16 bytes";
    case Refusal::kAlignment: return "a, b or d is not aligned to 16 bytes";
    case Refusal::kScaleAlignment: return "scale_a, scale_b or bias is not aligned to its elements";
    case Refusal::kOutType: return "the output type is neither bfloat16 nor float16";
    case Refusal::kArchitecture: return "the device is not of compute capability 9.0, which sm_90a code needs";
    case Refusal::kWorkspace: return "the workspace is smaller than loadproof_cutlass_workspace says";
  }
  return "unknown status";
}

}  // namespace
}  // namespace loadproof

using namespace loadproof;

extern "C" {

int32_t loadproof_cutlass_choose(int64_t m) {
  int32_t index = 0;
  while (m > kConfigurations[index]->most_rows) ++index;
  return index;
}

char const* loadproof_cutlass_name(int32_t configuration) {
  return configuration >= 0 && configuration < kConfigurationCount ? kConfigurations[configuration]->name : nullptr;
}

int32_t loadproof_cutlass_workspace(LoadproofScaledMm const* problem, size_t* bytes) {
  if (!problem || !bytes) return refusal(Refusal::kNullPointer);
  *bytes = 0;
  if (Status const status = check(*problem); status != success() || problem->m == 0) return status;
  int multiprocessors = 0;
  if (Status const status = device_multiprocessors(&multiprocessors); status != success()) return status;
  return kConfigurations[loadproof_cutlass_choose(problem->m)]->workspace(*problem, multiprocessors, bytes);
}

int32_t loadproof_cutlass_scaled_mm(
    LoadproofScaledMm const* problem, void* workspace, size_t workspace_bytes, void* stream) {
  if (!problem) return refusal(Refusal::kNullPointer);
  if (Status const status = check(*problem); status != success() || problem->m == 0) return status;
  int multiprocessors = 0;
  if (Status const status = device_multiprocessors(&multiprocessors); status != success()) return status;
  return kConfigurations[loadproof_cutlass_choose(problem->m)]->run(
      *problem, multiprocessors, workspace, workspace_bytes, static_cast<cudaStream_t>(stream));
}

char const* loadproof_cutlass_message(int32_t status) {
  if (status == success()) return "success";
  if (status >= kCudaBase) return cudaGetErrorString(static_cast<cudaError_t>(status - kCudaBase));
  if (status >= kCutlassBase) {
    return cutlassGetStatusString(static_cast<cutlass::Status>(status - kCutlassBase));
  }
  return words(static_cast<Refusal>(status));
}
}
