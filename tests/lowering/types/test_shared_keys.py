"""Layers that use the keys of a layer before them attend to their own sequence all the same."""

import torch
import transformers

from headrace.frontend.trace import trace
from headrace.ir import AttentionType, Verdict, Window
from headrace.lowering.pipeline import analyse
from headrace.lowering.types.attention import borrowed_keys
from tests.tiny import checkpoint, decoder, randomise, rows_of, token_ids

SHARED = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 6,
    "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
    "altup_num_inputs": 2,
    "activation_sparsity_pattern": [0.0] * 4,
}


def test_keys_of_the_first_layer_are_no_encoders():
    """They have read no mask of the text yet, which is not another sequence."""
    torch.manual_seed(0)
    model = randomise(transformers.Gemma3nTextModel(transformers.Gemma3nTextConfig(**decoder(**SHARED)))).eval()
    made = trace(checkpoint(model))
    program = analyse(made.program, made.behaviour)
    assert {spec.type for spec in program.nodes.attention} == {AttentionType.DECODER}
    assert [spec.window.bounded for spec in program.nodes.attention] == [True, False, True, False]
    assert program.nodes.attention[1].window == Window(-1, 0)
    assert borrowed_keys(program.graph) == {spec.node for spec in program.nodes.attention[2:]}
    assert [spec.verdict for spec in program.nodes.attention] == [Verdict.PROVEN] * 4
    ids = token_ids(20, batch=2)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
    assert (rows_of(program, ids) - expected).abs().max() <= 1e-5
