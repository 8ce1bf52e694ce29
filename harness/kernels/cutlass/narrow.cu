// Up to 16 rows: decoding, bound by reading the weight. A tile of 16 keeps the stages of the pipeline small, so
// that many loads are in flight; the weight's columns fill the MMA's 64-wide side.
#include "gemm.cuh"

namespace loadproof {

struct NarrowShape {
  using Tile = Shape<_64, _16, _128>;
  using Cluster = Shape<_1, _1, _1>;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
  static constexpr bool kSwapped = true;
};

Configuration const kNarrow{
    "cutlass_sm90_e4m3_swapped_64x16x128", 16, run_shape<NarrowShape>, workspace_shape<NarrowShape>};

}  // namespace loadproof
