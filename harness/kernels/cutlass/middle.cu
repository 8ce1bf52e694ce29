// Up to 128 rows: two tiles of rows, whose blocks share each weight tile by multicast, so that it is read once.
#include "gemm.cuh"

namespace loadproof {

struct MiddleShape {
  using Tile = Shape<_64, _128, _128>;
  using Cluster = Shape<_2, _1, _1>;
  static constexpr bool kSwapped = false;
};

Configuration const kMiddle{
    "cutlass_sm90_e4m3_64x128x128", 128, run_shape<MiddleShape>, workspace_shape<MiddleShape>};

}  // namespace loadproof
