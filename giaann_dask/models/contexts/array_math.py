"""Compute exponentials and logarithms of arrays in loops that compilers vectorise.

``math.exp`` and ``math.log`` are calls for one number each. The algorithms are those of FreeBSD's ``e_exp.c`` and
``e_log.c``, whose error is below one unit in the last place, without branches. Their operations are IEEE 754's and are
not contracted, so the results are the same on every processor and for every length of the arrays.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.lazy import jit

Floats: TypeAlias = npt.NDArray[np.float64]

# The exponential of larger numbers is close to overflow, and that of smaller ones to 0.
_MOST = 708.0
_LN2_HIGH, _LN2_LOW, _LOG2_E = 6.93147180369123816490e-01, 1.90821492927058770002e-10, 1.44269504088896338700
# Added to a number below 2 ** 51 it leaves the nearest integer in the last bits.
_ROUNDING = 1.5 * 2.0**52
_P1, _P2, _P3 = 1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05
_P4, _P5 = -1.65339022054652515390e-06, 4.13813679705723846039e-08
_BIAS, _MANTISSA_BITS = 1023, 52
_MANTISSA = (1 << _MANTISSA_BITS) - 1
# Bits of the square root of 1/2, and of 1.
_ROOT, _ONE = 0x3FE6A09E667F3BCD, _BIAS << _MANTISSA_BITS
_L1, _L2, _L3 = 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01
_L4, _L5 = 2.222219843214978396e-01, 1.818357216161805012e-01
_L6, _L7 = 1.531383769920937332e-01, 1.479819860511658591e-01


@jit
def exponentials(values: Floats, count: int, found: Floats, scales: Floats) -> None:
    """Compute the exponentials of the first values of an array, those beyond 708 and -708 as if they were these.

    Parameters
    ----------
    values : ndarray
        Float64; not NaN.
    count : int
        How many of them are used.
    found, scales : ndarray
        Float64, as long; the result, and work space.
    """
    for at in range(count):
        value = min(max(values[at], -_MOST), _MOST)
        shifted = value * _LOG2_E + _ROUNDING
        scales[at] = shifted
        power = shifted - _ROUNDING
        high, low = value - power * _LN2_HIGH, power * _LN2_LOW
        rest = high - low
        square = rest * rest
        part = rest - square * (_P1 + square * (_P2 + square * (_P3 + square * (_P4 + square * _P5))))
        found[at] = 1.0 - ((low - (rest * part) / (2.0 - part)) - high)
    bits = scales.view(np.int64)
    for at in range(count):
        bits[at] = (bits[at] + _BIAS) << _MANTISSA_BITS
    for at in range(count):
        found[at] *= scales[at]


@jit
def logarithms_of_more(values: Floats, count: int, found: Floats, scales: Floats) -> None:
    """Compute the natural logarithms of 1 more than the first values of an array.

    Parameters
    ----------
    values : ndarray
        Float64, 0 or more and finite. The logarithm of a small number has no more digits than the sum with 1.
    count : int
        How many of them are used.
    found, scales : ndarray
        Float64, as long; the result, and work space.
    """
    for at in range(count):
        found[at] = values[at] + 1.0
    bits = found.view(np.int64)
    for at in range(count):
        moved = bits[at] + (_ONE - _ROOT)
        scales[at] = float((moved >> _MANTISSA_BITS) - _BIAS)
        bits[at] = (moved & _MANTISSA) + _ROOT
    for at in range(count):
        part, power = found[at] - 1.0, scales[at]
        ratio = part / (2.0 + part)
        square = ratio * ratio
        fourth = square * square
        odd = square * (_L1 + fourth * (_L3 + fourth * (_L5 + fourth * _L7)))
        series = odd + fourth * (_L2 + fourth * (_L4 + fourth * _L6))
        half = 0.5 * part * part
        found[at] = ratio * (half + series) + power * _LN2_LOW - half + part + power * _LN2_HIGH
