"""SIMD vectors as values of Numba kernels, and an exponential that vectorises.

LLVM vectorises a loop over channels only if it can prove enough about the loop, and often it cannot. Here an LLVM
vector is a Numba type, :class:`VectorType`, so a kernel loads, combines and stores whole vectors in registers.

Kernels get flat arrays. The vector width, and the number of vectors ("blocks") that make up the channels, are passed as
the lengths of tuples. Numba types tuples by length, which makes both compile-time constants::

    z = load(features, node * channels, width)
    score = horizontal_sum(att * where_positive(z, z, broadcast(features, slope, width) * z))
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, overload, register_model

from equipoise.kernels.jit import FASTMATH

MIN_WIDTH = 8  # channels are padded to a multiple of this
MAX_UNROLLED = 7  # blocks; longer loops over them are not worth unrolling
Width = tuple[None, ...]  # a vector width, as a tuple of that length
Blocks = tuple[Width, ...] | tuple[Width, int]


def vector_blocks(channels: int, dtype: Any, avx2_bytes: int = 128) -> Blocks:
    """Split channels into equal blocks of one SIMD vector each.

    The width is the largest power of two that divides the channels and leaves registers for the other values that a
    kernel holds: 256 bytes with AVX-512.

    Args:
        channels: a multiple of ``MIN_WIDTH``.
        dtype: of the features.
        avx2_bytes: maximum width of a vector without AVX-512, whose registers are half as wide and half as many.

    Returns:
        The width once per block, up to ``MAX_UNROLLED`` blocks: a compile-time count. Otherwise the width and a runtime
        integer.

    Example:
        >>> [(len(blocks), len(blocks[0])) for blocks in (vector_blocks(8, "f4"), vector_blocks(48, "f4"))]
        [(1, 8), (3, 16)]
        >>> vector_blocks(8 * 37, "f4")[1]
        37
    """
    block_bytes = 256 if has_avx512() else avx2_bytes
    lanes = block_bytes // np.dtype(dtype).itemsize
    while channels % lanes:
        lanes //= 2
    width, count = (None,) * lanes, channels // lanes
    return (width,) * count if count <= MAX_UNROLLED else (width, count)


@cache
def has_avx512() -> bool:
    """Whether Numba compiles for AVX-512: the processor has it, and ``NUMBA_CPU_FEATURES`` does not exclude it."""
    selected: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]  # set by Numba at import
    if selected is not None:
        return "+avx512f" in selected.split(",")
    return bool(binding.get_host_cpu_features().get("avx512f"))


def num_blocks(blocks: Any) -> int:
    """Number of blocks; a constant inside a kernel if it is known at compile time."""
    return blocks[1] if isinstance(blocks[-1], int) else len(blocks)


@overload(num_blocks)
def _num_blocks(blocks: Any) -> Any:
    constant = blocks.count

    def static_count(blocks: Any) -> int:  # noqa: ARG001
        return constant

    def runtime_count(blocks: Any) -> int:
        return blocks[1]

    return static_count if isinstance(blocks, types.UniTuple) else runtime_count


def padded_channels(channels: int) -> int:
    """Round up to a positive multiple of ``MIN_WIDTH``.

    Args:
        channels: number of channels.

    Returns:
        Number of channels after padding.

    Example:
        >>> padded_channels(0), padded_channels(7), padded_channels(64)
        (8, 8, 64)
    """
    return -(-max(channels, 1) // MIN_WIDTH) * MIN_WIDTH


class VectorType(types.Type):
    """Numba type of a SIMD vector of ``count`` numbers."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(name=f"VectorType({dtype}, {count})")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: VectorType) -> None:
        element = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.count))


def _register_operator(symbol: Callable[[Any, Any], Any], instruction: str) -> None:
    """Lower an elementwise operator between two vectors to an LLVM instruction."""

    @infer_global(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            del kws
            if len(args) == 2 and isinstance(args[0], VectorType) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(symbol, VectorType, VectorType)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context, sig
        return getattr(builder, instruction)(*args, flags=FASTMATH)


_register_operator(operator.add, "fadd")
_register_operator(operator.mul, "fmul")


def vector_intrinsic(build: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's ``intrinsic``, typed as kernels call it: without the typing context."""
    return intrinsic(build)


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, vector: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _zeros(vector: Any) -> Any:
    return ir.Constant(vector, [0.0] * vector.count)


@vector_intrinsic
def load(typing: Any, array: Any, offset: Any, width: Any) -> Any:
    """Load a vector from ``array[offset:]`` of a flat array, without bounds check."""
    del typing, offset

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        value = builder.load(_address(context, builder, sig.args[0], args[0], args[1], vector))
        value.align = sig.args[0].dtype.bitwidth // 8
        return value

    return VectorType(array.dtype, width.count)(array, types.intp, width), generate


@vector_intrinsic
def store(typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """Store a vector to ``array[offset:]`` of a flat array, without bounds check."""
    del typing, offset

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> None:
        vector = context.get_value_type(sig.args[2])
        instruction = builder.store(args[2], _address(context, builder, sig.args[0], args[0], args[1], vector))
        instruction.align = sig.args[0].dtype.bitwidth // 8

    return types.void(array, types.intp, value), generate


@vector_intrinsic
def at(typing: Any, array: Any, offset: Any) -> Any:
    """``array[offset]`` of a flat array. Numba's own indexing first tests whether the index is negative."""
    del typing, offset

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        model = context.data_model_manager[sig.return_type]
        return model.from_data(
            builder, builder.load(_address(context, builder, sig.args[0], args[0], args[1], model.get_data_type()))
        )

    return array.dtype(array, types.intp), generate


@vector_intrinsic
def put(typing: Any, array: Any, offset: Any, number: Any) -> Any:
    """``array[offset] = number`` of a flat array, without a test for a negative index."""
    del typing, offset, number

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> None:
        model = context.data_model_manager[sig.args[2]]
        address = _address(context, builder, sig.args[0], args[0], args[1], model.get_data_type())
        builder.store(model.as_data(builder, args[2]), address)

    return types.void(array, types.intp, array.dtype), generate


@vector_intrinsic
def broadcast(typing: Any, like: Any, number: Any, width: Any) -> Any:
    """A vector with the same number in every lane, of the dtype of the array ``like``."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        value = context.cast(builder, args[1], sig.args[1], sig.args[0].dtype)
        undefined, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
        first = builder.insert_element(undefined, value, ir.Constant(index, 0))
        lane_zero = ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count)
        return builder.shuffle_vector(first, undefined, lane_zero)

    return VectorType(like.dtype, width.count)(like, number, width), generate


@vector_intrinsic
def where_positive(typing: Any, x: Any, yes: Any, no: Any) -> Any:
    """``yes`` in lanes where x > 0, ``no`` in the others, including NaN."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context, sig
        return builder.select(builder.fcmp_ordered(">", args[0], _zeros(args[0].type)), args[1], args[2])

    return x(x, yes, no), generate


@vector_intrinsic
def clamp_negative(typing: Any, x: Any) -> Any:
    """ReLU, max(x, 0); NaN stays NaN."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context, sig
        zeros = _zeros(args[0].type)
        return builder.select(builder.fcmp_ordered("<", args[0], zeros), zeros, args[0])

    return x(x), generate


@vector_intrinsic
def any_nonzero(typing: Any, x: Any) -> Any:
    """Whether any lane is nonzero; NaN counts as nonzero."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context, sig
        flags = builder.fcmp_unordered("!=", args[0], _zeros(args[0].type))
        mask = builder.bitcast(flags, ir.IntType(args[0].type.count))
        return builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, 0))

    return types.boolean(x), generate


@vector_intrinsic
def horizontal_sum(typing: Any, x: Any) -> Any:
    """Sum over lanes, in an order that LLVM chooses."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context
        vector, element = args[0].type, args[0].type.element
        name = f"llvm.vector.reduce.fadd.v{vector.count}f{sig.args[0].dtype.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(element, [element, vector]), name)
        return builder.call(function, [ir.Constant(element, -0.0), args[0]], fastmath=FASTMATH)

    return x.dtype(x), generate


@vector_intrinsic
def prefetch(typing: Any, array: Any, offset: Any, width: Any) -> Any:
    """Prefetch the vector at ``array[offset:]`` into the cache."""
    del typing, offset

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte, number = ir.IntType(8), ir.IntType(32)
        flags = [ir.Constant(number, flag) for flag in (0, 3, 1)]  # read access, high locality, data cache
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        first_byte = _address(context, builder, sig.args[0], args[0], args[1], byte)
        for line in range(0, sig.args[0].dtype.bitwidth // 8 * sig.args[2].count, 64):
            builder.call(function, [builder.gep(first_byte, [ir.Constant(ir.IntType(64), line)]), *flags])
        return context.get_dummy_value()

    return types.void(array, types.intp, width), generate


LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # their sum is ln 2; n · LN2_HIGH is exact
EXP_MIN = np.float32(
    -87
)  # e⁻⁸⁷ is near the smallest normal float32, and negligible against a softmax's largest term, e⁰
# (eʳ − 1 − r) / r² for |r| ≤ ln 2 / 2: coefficients of Cephes, highest power first
C5, C4, C3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
C2, C1, C0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
ONE, EXPONENT_BIAS, MANTISSA_BITS = np.float32(1), np.int32(127), np.int32(23)


def fast_exp(x: Any) -> Any:
    """eˣ for x ≤ 0, inside a kernel.

    For float32 a polynomial that LLVM vectorises, accurate to 2 ULP; ``np.exp`` would call the C library for every
    number, as it does for float64.

    Args:
        x: a scalar.

    Returns:
        eˣ; for float32 and x < −87 it is e⁻⁸⁷, and NaN stays NaN.
    """
    return np.exp(x)


@overload(fast_exp, inline="always")
def _fast_exp(x: Any) -> Any:
    def library(x: Any) -> Any:
        return np.exp(x)

    def polynomial(x: Any) -> Any:
        x = EXP_MIN if x < EXP_MIN else x  # false for NaN, which propagates
        n = np.rint(x * LOG2_E)
        r = x - n * LN2_HIGH - n * LN2_LOW
        tail = ((((C5 * r + C4) * r + C3) * r + C2) * r + C1) * r + C0
        return (tail * r * r + r + ONE) * np.int32((np.int32(n) + EXPONENT_BIAS) << MANTISSA_BITS).view(np.float32)

    return polynomial if x == types.float32 else library
