// One configuration of the kernel: CUTLASS 3.x collectives for Hopper with the scales and the bias in the epilogue.
#pragma once

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/numeric_types.h>

#include "status.h"

namespace loadproof {

using namespace cute;
namespace fusion = cutlass::epilogue::fusion;

using Element = cutlass::float_e4m3_t;
constexpr int kOperandAlignment = kAlignmentBytes / sizeof(Element);

// A vector along D's columns or rows as the MMA sees it, or one value for all: `bool` strides decide per launch.
// The alignment of 1 keeps loads elementwise, so that a scale or bias may start at any of its own elements.
template <class Tile, class In>
using AlongN = fusion::Sm90RowBroadcast<0, Tile, In, float, Stride<_0, bool, _0>, 1>;
template <class Tile, class In>
using AlongM = fusion::Sm90ColBroadcast<0, Tile, In, float, Stride<bool, _0, _0>, 1>;

template <template <class> class Operation, class... Children>
using Node = fusion::Sm90EVT<
    fusion::Sm90Compute<Operation, float, float, cutlass::FloatRoundStyle::round_to_nearest>, Children...>;

// The tensor core keeps the running sum over all of K, as in vLLM's kernels: what that may lose is in
// harness/kernels/accumulation.py. Promoting it to float32 every 128 products took up to 1.6 times as long.
using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum;
using Epilogue = cutlass::epilogue::TmaWarpSpecialized;

// `Shape` is a struct of Tile, Cluster and kSwapped. Swapped: the MMA computes D transposed, so that its 64-wide
// side takes the columns of D and its narrow side the few rows of A.
template <class Shape_, class Out>
struct Gemm {
  using Tile = typename Shape_::Tile;
  static constexpr bool kSwapped = Shape_::kSwapped;

  template <class In>
  using PerRow = conditional_t<kSwapped, AlongN<Tile, In>, AlongM<Tile, In>>;
  template <class In>
  using PerColumn = conditional_t<kSwapped, AlongM<Tile, In>, AlongN<Tile, In>>;

  // In float32 and in this order, with one fused multiply-add for the row scale and the bias and one conversion.
  using Scaled = Node<cutlass::multiplies, PerColumn<float>, fusion::Sm90AccFetch>;
  using Fusion = fusion::Sm90EVT<
      fusion::Sm90Compute<
          cutlass::homogeneous_multiply_add, Out, float, cutlass::FloatRoundStyle::round_to_nearest>,
      PerRow<float>, Scaled, PerColumn<Out>>;

  using LayoutD = conditional_t<kSwapped, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  static constexpr int kAlignmentD = kAlignmentBytes / sizeof(Out);

  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, typename Shape_::Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, LayoutD, kAlignmentD, Out, LayoutD,
      kAlignmentD, Epilogue, Fusion>::CollectiveOp;

  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor, kOperandAlignment,
      Element, cutlass::layout::ColumnMajor, kOperandAlignment, float, Tile, typename Shape_::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      Mainloop>::CollectiveOp;

  using Kernel = cutlass::gemm::kernel::GemmUniversal<
      cute::Shape<int, int, int, int>, CollectiveMainloop, CollectiveEpilogue>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static typename Device::Arguments arguments(LoadproofScaledMm const& p, int multiprocessors) {
    auto const* a = static_cast<Element const*>(p.a);
    auto const* b = static_cast<Element const*>(p.b);
    auto const* bias = static_cast<Out const*>(p.bias);
    auto* d = static_cast<Out*>(p.d);

    typename Device::Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    int const m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
    args.problem_shape = kSwapped ? make_shape(n, m, k, 1) : make_shape(m, n, k, 1);
    args.mainloop.ptr_A = kSwapped ? b : a;
    args.mainloop.ptr_B = kSwapped ? a : b;
    get<0>(args.mainloop.dA) = kSwapped ? p.ldb : p.lda;
    get<0>(args.mainloop.dB) = kSwapped ? p.lda : p.ldb;
    args.epilogue.ptr_D = d;
    get<kSwapped ? 1 : 0>(args.epilogue.dD) = p.ldd;
    args.epilogue.thread = {
        per_row<float>(p.scale_a, p.scale_a_is_vector != 0),
        {per_column<float>(p.scale_b, p.scale_b_is_vector != 0), {}, {}},
        per_column<Out>(bias, true),
        {}};
    args.hw_info.sm_count = multiprocessors;
    return args;
  }

  static Status workspace(LoadproofScaledMm const& p, int multiprocessors, size_t* bytes) {
    *bytes = Device::get_workspace_size(arguments(p, multiprocessors));
    return success();
  }

  static Status run(
      LoadproofScaledMm const& p, int multiprocessors, void* workspace, size_t bytes, cudaStream_t stream) {
    auto const args = arguments(p, multiprocessors);
    if (Device::get_workspace_size(args) > bytes) {
      return refusal(Refusal::kWorkspace);
    }
    if (auto const status = Device::can_implement(args); status != cutlass::Status::kSuccess) {
      return from_cutlass(status);
    }
    Device device;
    if (auto const status = device.initialize(args, workspace, stream); status != cutlass::Status::kSuccess) {
      return from_cutlass(status);
    }
    auto const status = device.run(stream);
    // CUTLASS hides the reason of a failed launch behind "internal"; the runtime still holds it.
    if (cudaError_t const error = cudaGetLastError(); error != cudaSuccess) {
      return from_cuda(error);
    }
    return status == cutlass::Status::kSuccess ? success() : from_cutlass(status);
  }

 private:
  // No bias is -0, the one addend that leaves every float32 as it is, -0 included.
  template <class In>
  static auto per_row(In const* values, bool vector) {
    typename PerRow<In>::Arguments args{};
    fill<kSwapped>(args, values, vector);
    return args;
  }
  template <class In>
  static auto per_column(In const* values, bool vector) {
    typename PerColumn<In>::Arguments args{};
    fill<!kSwapped>(args, values, vector);
    return args;
  }
  template <bool kAlongN, class Arguments, class In>
  static void fill(Arguments& args, In const* values, bool vector) {
    args.null_default = In(-0.0f);
    if constexpr (kAlongN) {
      args.ptr_row = values;
      get<1>(args.dRow) = vector;
    } else {
      args.ptr_col = values;
      get<0>(args.dCol) = vector;
    }
  }
};

template <class Shape_>
Status run_shape(
    LoadproofScaledMm const& p, int multiprocessors, void* workspace, size_t bytes, cudaStream_t stream) {
  return p.out_type == kLoadproofFloat16
             ? Gemm<Shape_, cutlass::half_t>::run(p, multiprocessors, workspace, bytes, stream)
             : Gemm<Shape_, cutlass::bfloat16_t>::run(p, multiprocessors, workspace, bytes, stream);
}

template <class Shape_>
Status workspace_shape(LoadproofScaledMm const& p, int multiprocessors, size_t* bytes) {
  return p.out_type == kLoadproofFloat16
             ? Gemm<Shape_, cutlass::half_t>::workspace(p, multiprocessors, bytes)
             : Gemm<Shape_, cutlass::bfloat16_t>::workspace(p, multiprocessors, bytes);
}

}  // namespace loadproof
