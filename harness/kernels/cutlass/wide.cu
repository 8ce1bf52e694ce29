// More than 128 rows: bound by arithmetic. One warpgroup writes its tile out while the other multiplies.
#include "gemm.cuh"

#include <limits>

namespace loadproof {

struct WideShape {
  using Tile = Shape<_128, _128, _128>;
  using Cluster = Shape<_2, _1, _1>;
  static constexpr bool kSwapped = false;
};

Configuration const kWide{
    "cutlass_sm90_e4m3_128x128x128", std::numeric_limits<int64_t>::max(), run_shape<WideShape>,
    workspace_shape<WideShape>};

}  // namespace loadproof
