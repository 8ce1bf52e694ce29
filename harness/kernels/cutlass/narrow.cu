// Up to 16 rows: decoding, bound by reading the weight. The weight's columns fill the MMA's 64-wide side; a tile of
// 16 rows keeps the stages small, so that many loads are in flight, each of 256 bytes a row.
#include "gemm.cuh"

namespace loadproof {

struct NarrowShape {
  using Tile = Shape<_64, _16, _256>;
  using Cluster = Shape<_1, _1, _1>;
  static constexpr bool kSwapped = true;
};

Configuration const kNarrow{
    "cutlass_sm90_e4m3_swapped_64x16x256", 16, run_shape<NarrowShape>, workspace_shape<NarrowShape>};

}  // namespace loadproof
