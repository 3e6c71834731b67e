"""Reads a buffer larger than the GPU's cache, so that a call finds none of its data there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096
NAME = "kgen_bench_read"
USUAL_CACHE = 64 * 2**20


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def kgen_bench_read(buffer_ptr, sums_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Read and add up a block; only the sum is written, so hardly a line of the cache is dirty."""
    program = tl.program_id(0).to(tl.int64)
    values = tl.load(buffer_ptr + program * BLOCK + tl.arange(0, BLOCK))
    tl.store(sums_ptr + program, tl.sum(values, axis=0))


class Cold:
    """A buffer of more than twice the cache of the current GPU, and the kernel that reads it."""

    def __init__(self) -> None:
        self.cache = getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0) or USUAL_CACHE
        self.blocks = triton.cdiv(2 * self.cache + 32 * 2**20, 4 * BLOCK)
        self._buffer = torch.zeros(self.blocks * BLOCK, dtype=torch.int32, device="cuda")
        self._sums = torch.zeros(self.blocks, dtype=torch.int32, device="cuda")

    def read(self) -> None:
        """Launch the kernel; what is in the cache afterwards is the buffer."""
        kgen_bench_read[(self.blocks,)](self._buffer, self._sums, BLOCK=BLOCK)

    def mark(self) -> None:
        """Launch the kernel on one block: it tells calls apart, and the cache stays as it is."""
        kgen_bench_read[(1,)](self._buffer, self._sums, BLOCK=BLOCK)
