"""Kernels on the GPU that bring a value to another format there: they transpose, and round to fewer bits or back.

Channels first or last is a transpose of matrices, one for each item of the batch. Where the dtype stays the same, so do
the bits. The kernels are a few lines of CUDA C++, which NVRTC compiles when they are needed. Their conversions are
their own, because the headers of float16 are no part of every NVRTC.
"""

from __future__ import annotations

from functools import cache

from collage.backends.cuda_kernels.launch import Prepared, StreamLaunches, load_code
from collage.backends.tvm_cuda_codegen.nvrtc import compile_cubin
from collage.core.cuda import gpu
from collage.graph.dataflow import Array

__all__ = ["DTYPES", "rearranged"]

DTYPES = ("float32", "float16", "bfloat16")
"""What values may be stored as."""
_THREADS, _TILE = 256, 32
_MOST_BLOCKS = 2112
"""The most blocks of a conversion without a transpose: 16 for each multiprocessor of an H100."""

_STORED = {"float32": "float", "float16": "unsigned short", "bfloat16": "unsigned short"}

_CODE = """
union Bits { float number; unsigned bits; };

__device__ __forceinline__ float from_float32(float number) { return number; }
__device__ __forceinline__ float to_float32(float number) { return number; }
#define AS_IT_IS(stored) (stored)

__device__ __forceinline__ float from_bfloat16(unsigned short stored) {
  Bits found;
  found.bits = (unsigned)stored << 16;
  return found.number;
}
__device__ __forceinline__ unsigned short to_bfloat16(float number) {
  Bits given;
  given.number = number;
  if ((given.bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(given.bits >> 16 | 0x40u);
  return (unsigned short)((given.bits + 0x7fffu + (given.bits >> 16 & 1u)) >> 16);
}

__device__ __forceinline__ float from_float16(unsigned short stored) {
  unsigned sign = (unsigned)(stored & 0x8000u) << 16, exponent = stored >> 10 & 31u, rest = stored & 0x3ffu;
  Bits found;
  if (exponent == 31u) found.bits = 0x7f800000u | rest << 13;
  else if (exponent) found.bits = (exponent + 112u) << 23 | rest << 13;
  else found.number = (float)rest * 5.9604644775390625e-08f;
  found.bits |= sign;
  return found.number;
}
__device__ __forceinline__ unsigned short to_float16(float number) {
  Bits given;
  given.number = number;
  unsigned sign = given.bits >> 16 & 0x8000u, size = given.bits & 0x7fffffffu;
  if (size > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (size >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
  if (size >= 0x38800000u) {
    unsigned moved = size - 0x38000000u;
    return (unsigned short)(sign | (moved + 0xfffu + (moved >> 13 & 1u)) >> 13);
  }
  given.bits = size;
  given.number += 0.5f;  // the last bit of the sum is that of the smallest float16
  return (unsigned short)(sign | (given.bits - 0x3f000000u));
}

extern "C" __global__ void __launch_bounds__(256) transpose_values(
    const SOURCE* source, TARGET* target, unsigned long long rows, unsigned long long columns) {
  __shared__ VALUE tile[32][33];
  unsigned long long across = (columns + 31) / 32, down = (rows + 31) / 32, at = blockIdx.x;
  unsigned long long column = at % across * 32, row = at / across % down * 32;
  unsigned long long first = at / across / down * rows * columns;
  unsigned x = threadIdx.x % 32;
  for (unsigned y = threadIdx.x / 32; y < 32; y += 8)
    if (row + y < rows && column + x < columns)
      tile[y][x] = FROM(source[first + (row + y) * columns + column + x]);
  __syncthreads();
  for (unsigned y = threadIdx.x / 32; y < 32; y += 8)
    if (column + y < columns && row + x < rows)
      target[first + (column + y) * rows + row + x] = TO(tile[x][y]);
}

extern "C" __global__ void __launch_bounds__(256) convert_values(
    const SOURCE* source, TARGET* target, unsigned long long count) {
  for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < count; i += gridDim.x * 256ull)
    target[i] = TO(FROM(source[i]));
}
"""


def rearranged(source: Array, target: Array, matrices: tuple[int, int, int] | None) -> StreamLaunches:
    """A launch that fills the target with the source's elements, both on the GPU, in the target's dtype.

    ``matrices`` are how many matrices are transposed, and the rows and columns of each; without them the order stays.
    Raises UnsupportedError without NVRTC.
    """
    code = load_code(_cubin(source.dtype.name, target.dtype.name, gpu().architecture))
    ends = int(source.ctypes.data), int(target.ctypes.data)
    if matrices is None:
        function = code.function("convert_values")
        blocks = max(1, min(_MOST_BLOCKS, -(-source.size // _THREADS)))
        arguments: tuple[int, ...] = (*ends, source.size)
    else:
        count, rows, columns = matrices
        function = code.function("transpose_values")
        blocks = count * -(-rows // _TILE) * -(-columns // _TILE)
        arguments = (*ends, rows, columns)
    launch = Prepared(code, function, (blocks, 1, 1), (_THREADS, 1, 1), arguments)
    return StreamLaunches([launch], (source, target))


@cache
def _cubin(source: str, target: str, architecture: str) -> bytes:
    same = source == target
    names = {
        "SOURCE": _STORED[source],
        "TARGET": _STORED[target],
        "VALUE": _STORED[source] if same else "float",
        "FROM": "AS_IT_IS" if same else f"from_{source}",
        "TO": "AS_IT_IS" if same else f"to_{target}",
    }
    text = "".join(f"#define {name} {value}\n" for name, value in names.items())
    return compile_cubin(text + _CODE, architecture)
