"""The operators against their meaning written out in loops, against Hugging Face's eager code and torch's own."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ir import MaskKind, PoolKind, Window
from headrace.ops.attention import materialise_mask, pool_rows
from tests.synthetic import spec

CAUSAL, BIDIRECTIONAL, CHUNKED = MaskKind.CAUSAL.value, MaskKind.BIDIRECTIONAL.value, MaskKind.CHUNKED.value
CPU = torch.device("cpu")
WHOLE = {CAUSAL: [-1, 0], BIDIRECTIONAL: [-1, -1]}


def rand(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def attend(q, k, v, mask=None, bias=None, sinks=None, scale=0.5, kind=BIDIRECTIONAL, window=None, softcap=0.0):
    return torch.ops.headrace.attention(q, k, v, mask, bias, sinks, scale, kind, window or WHOLE[kind], softcap)


def by_hand(q, k, v, sees, bias=None, sinks=None, scale=0.5, softcap=0.0):
    """Softmax over what a query sees, in float64, one query at a time; `sees(row, query, key)`."""
    q, k, v = q.double(), k.double(), v.double()
    batch, heads, length, _ = q.shape
    group = heads // k.shape[1]
    out = torch.zeros(batch, length, heads, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                keys = [j for j in range(k.shape[2]) if sees(b, i, j)]
                scores = [float(q[b, h, i] @ k[b, h // group, j]) * scale for j in keys]
                if bias is not None:
                    scores = [
                        s + float(bias.expand(batch, heads, length, -1)[b, h, i, j])
                        for s, j in zip(scores, keys, strict=True)
                    ]
                if softcap:
                    scores = [softcap * math.tanh(s / softcap) for s in scores]
                total = sum(math.exp(s) for s in scores) + (math.exp(float(sinks[h])) if sinks is not None else 0.0)
                for s, j in zip(scores, keys, strict=True):
                    out[b, i, h] += math.exp(s) / total * v[b, h // group, j]
    return out


@given(
    kind=st.sampled_from([CAUSAL, BIDIRECTIONAL]),
    left=st.integers(-1, 4),
    right=st.integers(-1, 4),
    kv_heads=st.sampled_from([1, 2, 4]),
    softcap=st.sampled_from([0.0, 2.0]),
    sinks=st.booleans(),
    bias=st.booleans(),
    padding=st.lists(st.booleans(), min_size=6, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_attention_means_what_is_written_by_hand(kind, left, right, kv_heads, softcap, sinks, bias, padding):
    q, k, v = rand(2, 4, 6, 8), rand(2, kv_heads, 6, 8, seed=1), rand(2, kv_heads, 6, 5, seed=2)
    real = torch.tensor([padding, [True] * 6])
    window = [left, right if kind == BIDIRECTIONAL else 0]
    extra = {
        "bias": rand(1, 4, 6, 6, seed=3) if bias else None,
        "sinks": rand(4, seed=4) if sinks else None,
        "softcap": softcap,
    }

    def sees(b, i, j):
        allowed = j <= i if kind == CAUSAL else True
        allowed &= window[0] < 0 or i - j <= window[0]
        allowed &= window[1] < 0 or j - i <= window[1]
        return allowed and bool(real[b, j])

    mask = torch.ops.headrace.mask(real.long(), 2, 6, 6, 0, 0, kind, window, CPU)
    got = attend(q, k, v, mask, kind=kind, window=window, **extra)
    assert got.shape == (2, 6, 4, 5)
    assert (got - by_hand(q, k, v, sees, **extra)).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("kind", "window"), [(CAUSAL, [-1, 0]), (CAUSAL, [2, 0]), (BIDIRECTIONAL, [-1, -1]), (BIDIRECTIONAL, [2, 3])]
)
def test_no_mask_is_what_kind_and_window_say(kind, window):
    """Case B5: and no mask is not the same as causal."""
    q, k, v = rand(2, 4, 6, 8), rand(2, 2, 6, 8, seed=1), rand(2, 2, 6, 8, seed=2)
    mask = torch.ops.headrace.mask(None, 2, 6, 6, 0, 0, kind, window, CPU)
    assert torch.equal(attend(q, k, v, kind=kind, window=window), attend(q, k, v, mask, kind=kind, window=window))


def test_fewer_queries_than_keys_stand_at_the_end():
    """A cached step: 2 new queries over 6 keys."""
    q, k, v = rand(1, 4, 6, 8), rand(1, 4, 6, 8, seed=1), rand(1, 4, 6, 8, seed=2)
    whole = attend(q, k, v, kind=CAUSAL)
    assert (attend(q[:, :, 4:], k, v, kind=CAUSAL) - whole[:, 4:]).abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_fully_masked_row_gives_zeros(dtype):
    """Case P5: left padding under a causal mask leaves the first queries nothing to see."""
    q, k, v = (rand(1, 4, 4, 8, seed=s, dtype=dtype) for s in range(3))
    mask = torch.ops.headrace.mask(torch.tensor([[0, 0, 1, 1]]), 1, 4, 4, 0, 0, CAUSAL, [-1, 0], CPU)
    got = attend(q, k, v, mask, kind=CAUSAL)
    assert got.dtype is dtype
    assert (got[:, :2] == 0).all()
    assert got[:, 2:].isfinite().all()
    assert (got[:, 2:] != 0).any()


def test_equals_torch(tiny):
    q, k, v = rand(2, 4, 6, 8), rand(2, 4, 6, 8, seed=1), rand(2, 4, 6, 8, seed=2)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    bias = rand(2, 4, 6, 6, seed=3)
    assert (attend(q, k, v, bias=bias, scale=0.3).transpose(1, 2) - sdpa(q, k, v, bias, scale=0.3)).abs().max() <= 1e-6
    causal = sdpa(q, k, v, is_causal=True, scale=0.3)
    assert (attend(q, k, v, kind=CAUSAL, scale=0.3).transpose(1, 2) - causal).abs().max() <= 1e-6


def additive(mask):
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss", "bert"])
def test_equals_hugging_faces_eager_attention(tiny, name):
    """Grouped queries, the soft cap, the sinks: each by the eager function of a model that has it."""
    import importlib

    model = tiny(name)
    code = importlib.import_module(type(model).__module__)
    layer = next(m for m in model.modules() if hasattr(m, "scaling") and hasattr(m, "is_causal"))
    kv_heads = 4 // getattr(layer, "num_key_value_groups", 1)
    q, k, v = rand(2, 4, 6, 8), rand(2, kv_heads, 6, 8, seed=1), rand(2, kv_heads, 6, 8, seed=2)
    kind = BIDIRECTIONAL if name == "bert" else CAUSAL
    mask = torch.ops.headrace.mask(None, 2, 6, 6, 0, 0, kind, WHOLE[kind], CPU)
    softcap, sinks = getattr(layer, "attn_logit_softcapping", None), getattr(layer, "sinks", None)
    options = {"softcap": 3.0} if softcap else {}
    with torch.no_grad():
        theirs, _ = code.eager_attention_forward(layer, q, k, v, additive(mask), scaling=0.4, dropout=0.0, **options)
        ours = attend(q, k, v, mask, None, sinks, 0.4, kind, softcap=options.get("softcap", 0.0))
    assert (softcap is not None, sinks is not None) == (name == "gemma2", name == "gpt-oss")
    assert (ours - theirs).abs().max() <= 1e-6


@pytest.mark.parametrize("window", [Window(), Window(-1, 0), Window(2, 0), Window(2, 2), Window(0, 3), Window(1, -1)])
@pytest.mark.parametrize("kind", [CAUSAL, BIDIRECTIONAL, CHUNKED])
def test_a_mask_is_what_the_spec_sees(window, kind):
    """The specs' arithmetic, which the probe and the explain page use, and the tensor agree."""
    from headrace.ir import AttentionType

    if kind == CHUNKED and window.left < 0:
        pytest.skip("a block has a length")
    described = spec(AttentionType.ENCODER_ONLY, mask=MaskKind(kind), window=window)
    made = materialise_mask(None, 1, 7, 7, 0, 0, kind, window, CPU)[0, 0]
    assert made.tolist() == [[described.sees(i, j) for j in range(7)] for i in range(7)]


@pytest.mark.parametrize("left", [0, 3])
def test_blocks_are_counted_from_the_first_real_token(left):
    """As in the text alone, and as transformers counts them."""
    padding = torch.tensor([[0] * left + [1] * 7])
    whole = materialise_mask(padding, 1, left + 7, left + 7, 0, 0, CHUNKED, Window(2, 0), CPU)
    alone = materialise_mask(None, 1, 7, 7, 0, 0, CHUNKED, Window(2, 0), CPU)
    assert torch.equal(whole[0, 0, left:, left:], alone[0, 0])


def test_a_mask_of_a_chunk_is_a_part_of_the_whole():
    padding = torch.tensor([[1, 1, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0]])
    whole = materialise_mask(padding, 2, 7, 7, 0, 0, CAUSAL, Window(3, 0), CPU)
    part = materialise_mask(padding, 2, 2, 4, 4, 2, CAUSAL, Window(3, 0), CPU)
    assert whole.shape == (2, 1, 7, 7)
    assert torch.equal(part, whole[:, :, 4:6, 2:6])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_padding_of_any_dtype(dtype):
    padding = torch.tensor([[0, 1, 1]]).to(dtype)
    made = torch.ops.headrace.mask(padding, 1, 3, 3, 0, 0, BIDIRECTIONAL, [-1, -1], CPU)
    assert made.dtype is torch.bool
    assert made[0, 0].tolist() == [[False, True, True]] * 3


POOLS = {"lasttoken": PoolKind.LAST} | {kind.value: kind for kind in PoolKind if kind is not PoolKind.LAST}
MASKS = {
    "none": [[1, 1, 1, 1], [1, 1, 1, 1]],
    "right": [[1, 1, 1, 0], [1, 0, 0, 0]],
    "left": [[0, 0, 1, 1], [0, 1, 1, 1]],
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pool_equals_sentence_transformers(name, side, dtype):
    from sentence_transformers.models import Pooling

    rows, mask = rand(2, 4, 8, dtype=dtype), torch.tensor(MASKS[side])
    theirs = Pooling(8, name)({"token_embeddings": rows, "attention_mask": mask})["sentence_embedding"]
    ours = torch.ops.headrace.pool(rows, mask, POOLS[name].value)
    assert ours.dtype is dtype
    assert (ours - theirs).abs().max() <= (1e-6 if dtype is torch.float32 else 2e-2)


def test_every_kind_of_sentence_transformers_is_known():
    from sentence_transformers.models import Pooling

    assert set(POOLS) == set(Pooling.POOLING_MODES)


def test_cls_is_the_first_real_row():
    """Case P2."""
    rows = rand(1, 4, 8)
    assert torch.equal(torch.ops.headrace.pool(rows, torch.tensor([[0, 0, 1, 1]]), "cls"), rows[:, 2])


def test_last_is_the_last_real_row():
    rows = rand(1, 4, 8)
    assert torch.equal(torch.ops.headrace.pool(rows, torch.tensor([[1, 1, 0, 0]]), "last"), rows[:, 1])
    assert torch.equal(torch.ops.headrace.pool(rows, torch.tensor([[0, 1, 1, 1]]), "last"), rows[:, 3])


@pytest.mark.parametrize("mask", [[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]])
def test_the_weighted_mean_counts_from_the_first_real_row(mask):
    """Case P6."""
    rows, real = rand(1, 4, 8), torch.tensor([mask])
    first, second = (rows[:, i] for i in real[0].nonzero().flatten())
    expected = (first + 2 * second) / 3
    assert (torch.ops.headrace.pool(rows, real, "weightedmean") - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("kind", list(PoolKind))
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("filler", [float("nan"), float("inf"), -float("inf"), 1e38])
def test_what_padding_rows_hold_does_not_leak(kind, side, filler):
    mask = torch.tensor(MASKS[side])
    rows = rand(2, 4, 8)
    clean = torch.ops.headrace.pool(rows, mask, kind.value)
    dirty = torch.ops.headrace.pool(rows.masked_fill(mask[:, :, None] == 0, filler), mask, kind.value)
    assert torch.equal(clean, dirty)


@pytest.mark.parametrize("kind", list(PoolKind))
def test_padding_side_is_no_matter_to_a_pool(kind):
    rows = rand(1, 3, 8)
    right = torch.cat([rows, rand(1, 2, 8, seed=1)], 1)
    left = torch.cat([rand(1, 2, 8, seed=1), rows], 1)
    one = torch.ops.headrace.pool(right, torch.tensor([[1, 1, 1, 0, 0]]), kind.value)
    other = torch.ops.headrace.pool(left, torch.tensor([[0, 0, 1, 1, 1]]), kind.value)
    alone = pool_rows(rows, torch.ones(1, 3), kind)
    assert (one - alone).abs().max() <= 1e-6
    assert (other - alone).abs().max() <= 1e-6


def test_half_precision_rows_are_summed_in_float32():
    """4096 rows of 1 and a 0.004: bfloat16 sums would stop at 256."""
    rows = torch.full((1, 4096, 1), 1.0, dtype=torch.bfloat16)
    mask = torch.ones(1, 4096, dtype=torch.int64)
    assert torch.ops.headrace.pool(rows, mask, "mean").item() == 1.0


def operators():
    q, kv = rand(2, 4, 5, 8), rand(2, 2, 5, 8, seed=1)
    mask = torch.ops.headrace.mask(torch.ones(2, 5, dtype=torch.int64), 2, 5, 5, 0, 0, CAUSAL, [-1, 0], CPU)
    ops = torch.ops.headrace
    return [
        (ops.attention.default, (q, kv, rand(2, 2, 5, 6), mask, None, None, 0.5, CAUSAL, [-1, 0], 0.0)),
        (ops.attention.default, (q, kv, kv, None, rand(1, 4, 5, 5), rand(4), 0.5, BIDIRECTIONAL, [-1, -1], 5.0)),
        (ops.mask.default, (torch.ones(2, 5, dtype=torch.int64), 2, 5, 5, 0, 0, BIDIRECTIONAL, [-1, -1], CPU)),
        (ops.mask.default, (None, 2, 3, 5, 2, 0, CAUSAL, [2, 0], CPU)),
        (ops.pool.default, (rand(2, 5, 8), torch.ones(2, 5, dtype=torch.int64), "mean")),
        (ops.pool.default, (rand(2, 5, 8), torch.ones(2, 5, dtype=torch.int64), "last")),
    ]


@pytest.mark.parametrize("index", range(6))
def test_shapes_that_tracing_sees_are_those_that_running_gives(index):
    """torch's own check of a custom operator: schema, fake implementation, dispatch."""
    operator, arguments = operators()[index]
    torch.library.opcheck(
        operator, arguments, test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    )
