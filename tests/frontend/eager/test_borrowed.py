"""A forward that changes its module: every look begins from what the user gave, and leaves that."""

import collections
import copy
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

import headrace
from headrace.errors import TraceError
from headrace.frontend.eager.borrowed import Borrowed, borrowed
from headrace.frontend.trace import trace
from headrace.ir import Layout, PaddingRule, Task
from headrace.lowering.forms.choose import ChooseLayout
from headrace.lowering.pipeline import analyse, prepare
from tests.tiny import EOS, build, checkpoint, encoder, randomise, rows_of, token_ids

TRACES_LONG_ROPE = Version(transformers.__version__) >= Version("5.21")


class Holder(nn.Module):
    """One of each thing that a forward can change."""

    kept: list[Any]
    table: dict[str, Any]
    inner: Any
    alias: Any
    itself: Any

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.mode, self.count = "long", 0
        self.kept, self.table = [torch.ones(1)], {"a": [1]}
        self.seen, self.queue = {1}, collections.deque([1, 2])
        self.register_buffer("running", torch.zeros(2))
        self.register_buffer("grown", torch.zeros(2))

    def forward(self, _rows):
        self.mode, self.made, self.count = "short", torch.ones(1), self.count + 1
        self.kept[0].add_(1)
        self.kept.append(self.running)
        self.table["a"].append(2)
        self.table["b"] = 3
        self.seen.add(2)
        self.queue.append(3)
        self.running.add_(1)
        self.grown = torch.ones(5)
        self.inner.scale = 2.0


def told(holder):
    held = {name: value for name, value in vars(holder).items() if name not in vars(nn.Module())}
    return repr((held, sorted(vars(holder.inner)), list(holder.named_buffers())))


def test_all_that_a_forward_can_change_is_put_back():
    holder = Holder()
    before, lists = told(holder), (holder.kept, holder.running, holder.table["a"])
    with borrowed(holder) as held:
        assert held.changes() == ()
        holder(None)
        changed = held.changes()
    assert told(holder) == before
    assert all(one is other for one, other in zip(lists, (holder.kept, holder.running, holder.table["a"]), strict=True))
    names = {change.partition(" ")[0] for change in changed}
    assert names == {"mode", "made", "count", "kept", "table", "seen", "queue", "running", "grown", "inner.scale"}
    assert "mode (from 'long' to 'short')" in changed


def test_it_is_put_back_after_a_failure_too():
    holder = Holder()
    before = told(holder)
    with pytest.raises(KeyError), borrowed(holder):
        holder(None) or {}["nothing"]
    assert told(holder) == before


def test_a_tensor_that_is_held_twice_is_kept_once():
    holder = Holder()
    holder.alias = holder.running
    holder.itself = [holder.kept]
    holder.kept.append(holder.itself)
    held = Borrowed(holder)
    holder.running.add_(1)
    held.restore()
    assert holder.alias is holder.running
    assert not holder.running.any()


class Switching(nn.Module):
    """Turns for good to another way on the first text that is short, as BigBird does."""

    calls: Any

    def __init__(self):
        super().__init__()
        self.inner, self.mode = build("bert", num_hidden_layers=1), "sparse"

    def forward(self, input_ids, attention_mask=None):
        if self.mode == "sparse" and input_ids.shape[1] <= 20:
            self.mode = "full"
        output = self.inner(input_ids, attention_mask)
        if self.mode == "sparse":
            output.last_hidden_state = output.last_hidden_state * 2
        return output


class Counting(Switching):
    """Counts its calls, which changes nothing."""

    def forward(self, input_ids, attention_mask=None):
        self.calls = getattr(self, "calls", 0) + 1
        return self.inner(input_ids, attention_mask)


class Growing(Switching):
    """Keeps a table as long as the longest text so far."""

    def __init__(self):
        super().__init__()
        self.table = torch.ones(0)

    def forward(self, input_ids, attention_mask=None):
        if self.table.shape[0] < 64:
            self.table = torch.linspace(0, 1, 64)
        output = self.inner(input_ids, attention_mask)
        output.last_hidden_state = output.last_hidden_state * self.table[: input_ids.shape[1], None]
        return output


class Buffered(Switching):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids, attention_mask=None):
        self.calls += 1
        return self.inner(input_ids, attention_mask)


class Remembering(Switching):
    """Answers otherwise at each call."""

    def __init__(self):
        super().__init__()
        self.calls = 1

    def forward(self, input_ids, attention_mask=None):
        output = self.inner(input_ids, attention_mask)
        output.last_hidden_state = output.last_hidden_state / self.calls
        self.calls += 1
        return output


class Running(Buffered):
    """The same by a buffer."""

    def forward(self, input_ids, attention_mask=None):
        output = self.inner(input_ids, attention_mask)
        output.last_hidden_state = output.last_hidden_state + self.calls
        self.calls += 1
        return output


@pytest.mark.parametrize(("kind", "longest"), [(Switching, 20), (Counting, 64), (Growing, 64), (Buffered, 64)])
def test_a_model_that_changes_itself_is_served_as_it_was_given(kind, longest):
    model = kind().eval()
    fresh = copy.deepcopy(model)
    before = told(model)
    made = trace(checkpoint(model))
    program = analyse(made.program, made.behaviour)
    assert told(model) == before
    assert program.facts.limits.length == longest
    for length in (longest, 3, longest):
        ids = token_ids(length)
        with torch.no_grad():
            expected = copy.deepcopy(fresh)(ids).last_hidden_state
        assert (rows_of(program, ids) - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", [Remembering, Running])
def test_a_model_whose_answer_depends_on_earlier_texts_is_refused(kind):
    model = kind().eval()
    before = told(model)
    with pytest.raises(TraceError) as refused:
        trace(checkpoint(model))
    text = str(refused.value)
    assert "answers the same text otherwise when it is run again" in text
    assert "calls (from" in text
    assert "loop" not in text
    assert told(model) == before


def long_rope(**changes):
    factors = {"long_factor": [2.0, 3.0, 4.0, 5.0], "short_factor": [1.0, 1.1, 1.2, 1.3], "factor": 8.0}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16} | factors
    return build("llama", max_position_embeddings=128, rope_parameters=rope, **changes)


@pytest.mark.skipif(TRACES_LONG_ROPE, reason="transformers 5.21 chooses between the two by a tensor")
def test_long_rope_that_chooses_by_a_number_is_refused():
    with pytest.raises(TraceError, match=r"longrope_frequency_update.*decides by what a tensor holds"):
        trace(checkpoint(long_rope()))


@pytest.mark.skipif(not TRACES_LONG_ROPE, reason="transformers before 5.21 decides by a number, which is refused")
def test_long_rope_chooses_by_each_texts_own_length():
    model = long_rope()
    before = [buffer.clone() for buffer in model.buffers()]
    lowered = headrace.lower(model, target="reference", pooling="mean")
    program = lowered.program
    assert program.decision.padding is PaddingRule.UNPADDED
    assert all(torch.equal(one, other) for one, other in zip(before, model.buffers(), strict=True))
    for length in (10, 40, 16, 17):
        ids = token_ids(length, batch=2)
        with torch.no_grad():
            expected = copy.deepcopy(model)(ids).last_hidden_state
        assert (rows_of(program, ids) - expected).abs().max() <= 1e-5
    with torch.no_grad():
        alone = [copy.deepcopy(model)(token_ids(length)).last_hidden_state.mean(1)[0] for length in (10, 40)]
    together = lowered.compile()([token_ids(length)[0].tolist() for length in (10, 40)])
    for one, other in zip(alone, together, strict=True):
        assert (one - torch.tensor(other)).abs().max() <= 1e-5
    packed = ChooseLayout(Layout.PACKED)(prepare(program, Task.EMBED))
    assert "one number of all the texts in a batch" in packed.form.layout_why


@pytest.mark.parametrize(
    ("block", "longest"), [(4, 44), pytest.param(64, 704, marks=pytest.mark.slow)], ids=["block 4", "default"]
)
def test_big_bird_answers_as_a_fresh_one_or_refuses(block, longest):
    """Its own code turns to full attention, for good, on the first text of so many tokens or fewer."""
    changes = {"block_size": block, "max_position_embeddings": 1024, "num_labels": 3, "sep_token_id": EOS}
    config = transformers.BigBirdConfig(**encoder(**changes))
    torch.manual_seed(0)
    model = randomise(transformers.BigBirdForTokenClassification(config)).eval()
    fresh = copy.deepcopy(model)
    compiled = headrace.compile(model, target="reference")
    assert {model.bert.attention_type, model.bert.encoder.attention_type} == {"block_sparse"}
    for length in (longest, 7, 40):
        with torch.no_grad():
            expected = copy.deepcopy(fresh)(token_ids(length)).logits[0]
        assert (torch.tensor(compiled(token_ids(length).tolist())[0]) - expected).abs().max() <= 1e-5
    with pytest.raises(headrace.InputTooLongError, match=f"at most {longest} are accepted .longer texts go another"):
        compiled(token_ids(longest + 1).tolist())
