// The C interface of the library; kernel.py mirrors it with ctypes.
#pragma once

#include <cstddef>
#include <cstdint>

// The library is built with everything else hidden.
#define LOADPROOF_API __attribute__((visibility("default")))

extern "C" {

enum LoadproofOutType : int32_t { kLoadproofBfloat16 = 0, kLoadproofFloat16 = 1 };

// D [m, n] = cast(scale_a * (scale_b * (A [m, k] @ B [k, n])) + bias).
// A and B are E4M3: A row-major with lda elements between rows, B column-major with ldb elements between
// columns, D row-major with ldd elements between rows. All pointers are device pointers.
struct LoadproofScaledMm {
  void const* a;
  void const* b;
  void* d;
  float const* scale_a;  // m values if scale_a_is_vector, else one
  float const* scale_b;  // n values if scale_b_is_vector, else one
  void const* bias;      // n values of the output type, or null
  int64_t lda;
  int64_t ldb;
  int64_t ldd;
  int64_t m;
  int64_t n;
  int64_t k;
  int32_t scale_a_is_vector;
  int32_t scale_b_is_vector;
  int32_t out_type;  // LoadproofOutType
};

// All return 0, or a status that loadproof_cutlass_message puts into words. m = 0 succeeds without a launch.
LOADPROOF_API int32_t loadproof_cutlass_workspace(LoadproofScaledMm const* problem, size_t* bytes);
LOADPROOF_API int32_t loadproof_cutlass_scaled_mm(
    LoadproofScaledMm const* problem, void* workspace, size_t workspace_bytes, void* stream);

// The message is static, or thread-local and valid until the thread's next call.
LOADPROOF_API char const* loadproof_cutlass_message(int32_t status);

// Which configuration multiplies m rows, and its name; null past the last one.
LOADPROOF_API int32_t loadproof_cutlass_choose(int64_t m);
LOADPROOF_API char const* loadproof_cutlass_name(int32_t configuration);
}
