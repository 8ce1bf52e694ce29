"""The source of the Triton kernel; imports triton, so only the backend imports it, and at first use."""

import triton
import triton.language as tl


def loadproof_triton_scaled_mm(  # type: ignore[no-untyped-def]  # noqa: ANN201
    a,  # noqa: ANN001
    b,  # noqa: ANN001
    out,  # noqa: ANN001
    scale_a,  # noqa: ANN001
    scale_b,  # noqa: ANN001
    bias,  # noqa: ANN001
    m,  # noqa: ANN001
    n,  # noqa: ANN001
    k,  # noqa: ANN001
    ROW_SCALES: tl.constexpr,
    COLUMN_SCALES: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # Codes come as bytes: a masked load then has a zero of their type, and E4M3's zero is the byte 0.
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    steps = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + steps
        left = tl.load(
            a + rows[:, None] * k + inner[None, :],
            mask=(rows[:, None] < m) & (inner[None, :] < k),
            other=0,
        )
        right = tl.load(
            b + columns[None, :] * k + inner[:, None],
            mask=(columns[None, :] < n) & (inner[:, None] < k),
            other=0,
        )
        left = left.to(tl.float8e4nv, bitcast=True)
        right = right.to(tl.float8e4nv, bitcast=True)
        total += tl.dot(left, right)
    if COLUMN_SCALES:
        total *= tl.load(scale_b + columns, mask=columns < n, other=0.0)[None, :]
    else:
        total *= tl.load(scale_b)
    if ROW_SCALES:
        total *= tl.load(scale_a + rows, mask=rows < m, other=0.0)[:, None]
    else:
        total *= tl.load(scale_a)
    if BIASED:
        total += tl.load(bias + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out + rows[:, None] * n + columns[None, :], total.to(out.dtype.element_ty), mask=inside)


compiled = triton.jit(loadproof_triton_scaled_mm)
