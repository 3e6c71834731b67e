"""Copies a buffer larger than the GPU's cache, so that all calls find the cache in one state."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096
NAME = "kgen_bench_copy"
USUAL_CACHE = 64 * 2**20


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def kgen_bench_copy(source_ptr, target_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy a block."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + place, tl.load(source_ptr + place))


class Cold:
    """Two buffers of more than the cache of the current GPU each, and the kernel that copies."""

    def __init__(self) -> None:
        cache = getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0) or USUAL_CACHE
        self.blocks = triton.cdiv(cache + 16 * 2**20, 4 * BLOCK)
        self._source = torch.zeros(self.blocks * BLOCK, dtype=torch.int32, device="cuda")
        self._target = torch.zeros_like(self._source)

    def copy(self) -> None:
        """Launch the kernel.

        What is in the cache afterwards is of the buffers: in part lines that wait to be written,
        as any op that reads and writes a matrix leaves them.
        """
        kgen_bench_copy[(self.blocks,)](self._source, self._target, BLOCK=BLOCK)
