"""Products of matrices, however they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from headrace.compat.torch import operator_name


@dataclass(frozen=True)
class Operand:
    """A tensor of a product as [..., rows, columns]: permuted by `order`, then with the last two dimensions swapped."""

    node: fx.Node
    order: tuple[int, ...] | None = None
    swapped: bool = False


@dataclass(frozen=True)
class Product:
    """`left [..., M, K] @ right [..., K, N]`; `order` permutes it to the layout of the node."""

    left: Operand
    right: Operand
    order: tuple[int, ...] | None = None


def product_of(node: fx.Node) -> Product | None:
    """The product that a node computes, None where it has another form."""
    name, args = str(operator_name(node.target, "")), node.args
    if name == "einsum":
        return _einsum(node)
    left, right = args[1:3] if name == "baddbmm" else args[:2]
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return None
    same = left.meta["val"].dim() == right.meta["val"].dim()
    return Product(Operand(left), Operand(right)) if same else None


def _einsum(node: fx.Node) -> Product | None:
    """An einsum of two matrices whose batch letters both have."""
    operands: Any = node.args[1]
    equation = str(node.args[0]).replace(" ", "")
    if len(operands) != 2 or "." in equation or "->" not in equation:
        return None
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    shared = [x for x in out if x in left and x in right]
    rows, columns = [x for x in out if x not in right], [x for x in out if x not in left]
    summed = [x for x in left if x in right and x not in out]
    if not len(rows) == len(columns) == len(summed) == 1 or len(set(left)) < len(left) or len(set(right)) < len(right):
        return None
    return Product(
        Operand(operands[0], _order(left, [*shared, *rows, *summed])),
        Operand(operands[1], _order(right, [*shared, *summed, *columns])),
        _order("".join([*shared, *rows, *columns]), list(out)),
    )


def _order(letters: str, wanted: list[str]) -> tuple[int, ...] | None:
    order = tuple(letters.index(x) for x in wanted)
    return None if order == tuple(range(len(order))) else order
