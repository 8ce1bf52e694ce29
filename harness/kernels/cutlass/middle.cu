// Up to 128 rows: every weight tile is still read once. Two neighbours share the activations by multicast, which
// would otherwise cross the L2 cache once for each 64 columns.
#include "gemm.cuh"

namespace loadproof {

struct MiddleShape {
  using Tile = Shape<_64, _128, _128>;
  using Cluster = Shape<_2, _1, _1>;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
  static constexpr bool kSwapped = true;
};

Configuration const kMiddle{
    "cutlass_sm90_e4m3_swapped_64x128x128", 128, run_shape<MiddleShape>, workspace_shape<MiddleShape>};

}  // namespace loadproof
