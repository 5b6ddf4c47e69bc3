"""A run of numbers that a kernel handles as one: LLVM's vectors as a type of Numba's.

A compiler turns a loop over channels into vector instructions if it can prove enough about it, and often it cannot.
With the run as a value there is nothing to prove: it is loaded, added up and stored in registers, as wide as there are.

Kernels get their arrays flat. How many lanes a run has, and how many such blocks the channels are, they get as tuples
of these lengths, which makes them part of the kernel's type, and so constants::

    z = load(features, node * channels, lanes)
    score = total(att * if_positive(z, z, fill(features, slope, lanes) * z))
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, overload, register_model

from equipoise.kernels.compiled import FAST

SMALLEST = 8  # channels are filled up to a multiple of this
MANY = 8  # blocks from which on their number is no constant: loops over more of them are not worth writing out
Lane = tuple[None, ...]
Blocks = tuple[Lane, ...] | tuple[Lane, int]


def blocks_for(channels: int, dtype: Any) -> Blocks:
    """Channels as blocks of as many lanes as fit them evenly, and the registers with what a kernel holds at a time.

    Up to a number of them that is a constant, more are a number.

    Example:
        >>> [(len(blocks), len(blocks[0])) for blocks in (blocks_for(8, "f4"), blocks_for(48, "f4"))]
        [(1, 8), (3, 16)]
        >>> blocks_for(8 * 37, "f4")[1]
        37
    """
    registers = 256 if binding.get_host_cpu_features().get("avx512f") else 128  # bytes for one block
    lanes = registers // np.dtype(dtype).itemsize
    while channels % lanes:
        lanes //= 2
    lane, count = (None,) * lanes, channels // lanes
    return (lane,) * count if count < MANY else (lane, count)


def number_of(blocks: Any) -> int:
    """How many blocks there are."""
    return blocks[1] if isinstance(blocks[-1], int) else len(blocks)


@overload(number_of)
def _number_of(blocks: Any) -> Any:
    constant = blocks.count

    def known(blocks: Any) -> int:  # noqa: ARG001
        return constant

    def counted(blocks: Any) -> int:
        return blocks[1]

    return known if isinstance(blocks, types.UniTuple) else counted


def filled_up(channels: int) -> int:
    """The next multiple of the smallest number of lanes.

    Example:
        >>> filled_up(7), filled_up(64)
        (8, 64)
    """
    return -(-channels // SMALLEST) * SMALLEST


class Lanes(types.Type):
    """``count`` numbers of one kind."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(name=f"Lanes({dtype}, {count})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        number = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, lanes.count))


def _arithmetic(symbol: Callable[[Any, Any], Any], instruction: str) -> None:
    """``x + y`` and the like, lane by lane."""

    @infer_global(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            del kws
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(symbol, Lanes, Lanes)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context, sig
        return getattr(builder, instruction)(*args, flags=FAST)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.mul, "fmul")


def instruction(build: Callable[..., Any]) -> Callable[..., Any]:
    """A function of kernels only, given by its type and the code that it becomes."""
    return intrinsic(build)


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, vector: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _zeros(vector: Any) -> Any:
    return ir.Constant(vector, [0.0] * vector.count)


@instruction
def load(typing: Any, array: Any, offset: Any, lanes: Any) -> Any:
    """The numbers from ``array[offset]`` on, of a flat array; they are not checked to be there."""
    del typing, offset

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        value = builder.load(_address(context, builder, sig.args[0], args[0], args[1], vector))
        value.align = sig.args[0].dtype.bitwidth // 8
        return value

    return Lanes(array.dtype, lanes.count)(array, types.intp, lanes), generate


@instruction
def store(typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """Write to ``array[offset]`` and on."""
    del typing, offset

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> None:
        vector = context.get_value_type(sig.args[2])
        place = builder.store(args[2], _address(context, builder, sig.args[0], args[0], args[1], vector))
        place.align = sig.args[0].dtype.bitwidth // 8

    return types.void(array, types.intp, value), generate


@instruction
def fill(typing: Any, like: Any, number: Any, lanes: Any) -> Any:
    """The same number in every lane, of the array's kind."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        value = context.cast(builder, args[1], sig.args[1], sig.args[0].dtype)
        nothing, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
        first = builder.insert_element(nothing, value, ir.Constant(index, 0))
        everywhere = ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count)
        return builder.shuffle_vector(first, nothing, everywhere)

    return Lanes(like.dtype, lanes.count)(like, number, lanes), generate


@instruction
def if_positive(typing: Any, x: Any, yes: Any, no: Any) -> Any:
    """``yes`` where x > 0, ``no`` elsewhere, NaN included."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context, sig
        return builder.select(builder.fcmp_ordered(">", args[0], _zeros(args[0].type)), args[1], args[2])

    return x(x, yes, no), generate


@instruction
def rectified(typing: Any, x: Any) -> Any:
    """max(x, 0); NaN stays NaN."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context, sig
        zeros = _zeros(args[0].type)
        return builder.select(builder.fcmp_ordered("<", args[0], zeros), zeros, args[0])

    return x(x), generate


@instruction
def any_nonzero(typing: Any, x: Any) -> Any:
    """Whether any lane is other than zero; NaN is."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context, sig
        flags = builder.fcmp_unordered("!=", args[0], _zeros(args[0].type))
        word = builder.bitcast(flags, ir.IntType(args[0].type.count))
        return builder.icmp_unsigned("!=", word, ir.Constant(word.type, 0))

    return types.boolean(x), generate


@instruction
def total(typing: Any, x: Any) -> Any:
    """The sum over lanes, in the machine's own order."""
    del typing

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del context
        vector, number = args[0].type, args[0].type.element
        name = f"llvm.vector.reduce.fadd.v{vector.count}f{sig.args[0].dtype.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(number, [number, vector]), name)
        return builder.call(function, [ir.Constant(number, -0.0), args[0]], fastmath=FAST)

    return x.dtype(x), generate


@instruction
def prefetch(typing: Any, array: Any, offset: Any, lanes: Any) -> Any:
    """Ask for the numbers from ``array[offset]`` on, without waiting for them."""
    del typing, offset

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte, number = ir.IntType(8), ir.IntType(32)
        flags = [ir.Constant(number, flag) for flag in (0, 3, 1)]  # to be read, soon and again, data
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        start = _address(context, builder, sig.args[0], args[0], args[1], byte)
        for line in range(0, sig.args[0].dtype.bitwidth // 8 * sig.args[2].count, 64):
            builder.call(function, [builder.gep(start, [ir.Constant(ir.IntType(64), line)]), *flags])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate
