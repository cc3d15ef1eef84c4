"""A graph as torch's translations leave it to the graph that is shipped: nothing computed twice or in vain."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer
from onnxscript.rewriter import RewritePass, onnx_fusions
from onnxscript.rewriter.rules import common as rules

# What occurs in graphs of token models. onnxscript's own list is twice as long, for convolutions and what follows them,
# and one of its rules, of two slices to a split, walks the whole graph once a node.
RULES = (
    *rules.mul_by_1_rule.commute(), *rules.add_0_rule.commute(), rules.sub_0_rule, rules.div_by_1_rule,
    rules.dropout_zero_rule, rules.dropout_inference_rule,
    rules.two_reshapes_matmul_reshape_rule, rules.one_reshape_matmul_reshape_rule,
    rules.cast_constant_of_shape_rule, rules.cast_constant_of_shape_without_value_rule,
    rules.collapse_slice_rule, rules.collapse_slice2_rule,
    rules.min_min_rule, rules.max_max_rule, rules.min_max_rule, rules.max_min_rule,
    rules.cast_cast_rule, rules.no_op_cast_rule, rules.no_op_expand_rule, rules.flatten_to_reshape_rule,
    rules.reshape_reshape_rule, rules.no_op_transpose_rule, rules.transpose_transpose_rule,
    rules.unsqueeze_unsqueeze_rule, rules.squeeze_reshape_1d_rule,
    rules.no_op_dynamic_scatter_nd_rule, rules.no_op_static_scatter_nd_rule,
)  # fmt: skip
ROUNDS = 2


def simplify(model: ir.Model) -> None:
    """Fold constants, leave out what undoes itself, and write norms and rotations as one node where the opset can."""
    common.InlinePass()(model)
    for _ in range(ROUNDS):
        folded = optimizer.fold_constants(model, onnx_shape_inference=True)
        rewritten = RewritePass(RULES)(model)
        common.RemoveUnusedNodesPass()(model)
        if not (folded.modified or rewritten.modified):
            break
    for step in (
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    ):
        step(model)
    onnx_fusions.fuse(model)
