"""What one task keeps of a program, and what it refuses to do without."""

import pytest
import torch

from headrace import graphs
from headrace.errors import LoadError, TaskNotEnabledError
from headrace.frontend.trace import trace
from headrace.ir import TASK_RULES, OutputKind, PoolKind, Stage, Task
from headrace.lowering.forms.select import SelectTask
from headrace.lowering.pipeline import analyse, prepare
from tests.tiny import checkpoint, fed, outputs_of, token_ids

HEADS = [
    ("bert", "AutoModel", {}, Task.EMBED, OutputKind.EMBEDDING),
    ("bert", "AutoModel", {}, Task.TOKEN_EMBED, OutputKind.HIDDEN),
    ("bert", "AutoModelForMaskedLM", {}, Task.FILL_MASK, OutputKind.VOCABULARY_LOGITS),
    ("roberta", "AutoModelForSequenceClassification", {"num_labels": 3}, Task.CLASSIFY, OutputKind.SEQUENCE_LOGITS),
    ("llama", "AutoModelForSequenceClassification", {"num_labels": 1}, Task.SCORE, OutputKind.SEQUENCE_LOGITS),
    ("modernbert", "AutoModelForTokenClassification", {"num_labels": 5}, Task.TOKEN_CLASSIFY, OutputKind.TOKEN_LOGITS),
    ("qwen2-mixed-window", "AutoModelForCausalLM", {}, Task.EMBED, OutputKind.EMBEDDING),
    ("qwen2-mixed-window", "AutoModelForCausalLM", {}, Task.GENERATE, OutputKind.VOCABULARY_LOGITS),
]


@pytest.mark.parametrize(("name", "head", "changes", "task", "kind"), HEADS)
def test_one_output_equal_to_the_whole_programs(analysed, name, head, changes, task, kind):
    whole = analysed(name, head, **changes)
    program = SelectTask(task)(whole)
    assert [output.kind for output in program.signature.outputs] == [kind]
    assert program.stage is Stage.LOWERED
    ids, mask = token_ids(6, batch=2), torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    (kept,) = outputs_of(program, ids, mask).values()
    assert torch.equal(kept, outputs_of(whole, ids, mask)[kind.value])


def test_weights_of_other_outputs_are_dropped(analysed):
    whole = analysed("qwen2-mixed-window", "AutoModelForCausalLM")
    held = {task: set(SelectTask(task)(whole).graph.state_dict) for task in (Task.EMBED, Task.GENERATE)}
    assert held[Task.GENERATE] - held[Task.EMBED] == {"model.lm_head.weight"}
    assert held[Task.GENERATE] <= set(whole.graph.state_dict)


def test_a_pooler_that_nothing_reads_is_dropped(analysed):
    """Also where the checkpoint lacks it: sentence encoders are trained without one."""
    whole = analysed("bert")
    program = whole.with_(missing=("model.pooler.dense.weight", "model.pooler.dense.bias"))
    assert "model.pooler.dense.weight" not in SelectTask(Task.EMBED)(program).graph.state_dict


def test_missing_weights_that_the_task_reads_are_refused(analysed):
    program = analysed("roberta", "AutoModelForSequenceClassification", num_labels=3).with_(
        missing=("model.classifier.out_proj.weight", "model.classifier.dense.bias")
    )
    with pytest.raises(LoadError) as refused:
        SelectTask(Task.CLASSIFY)(program)
    assert "has no weights for model.classifier.dense.bias, model.classifier.out_proj.weight" in str(refused.value)
    assert "which classify reads: they would be random" in str(refused.value)


def test_missing_weights_of_another_output_are_no_matter(analysed):
    program = analysed("qwen2-mixed-window", "AutoModelForCausalLM").with_(missing=("model.lm_head.weight",))
    SelectTask(Task.EMBED)(program)
    with pytest.raises(LoadError, match=r"no weights for model.lm_head.weight, which generate reads"):
        SelectTask(Task.GENERATE)(program)


def test_many_missing_weights_are_cut_short(analysed):
    whole = analysed("bert")
    with pytest.raises(LoadError, match=r"\.\.\., which embed reads") as refused:
        SelectTask(Task.EMBED)(whole.with_(missing=tuple(whole.graph.state_dict)))
    assert str(refused.value).count("model.") == 5


def test_a_task_that_is_refused_or_unknown_to_the_model_is_refused(analysed):
    program = analysed("qwen2")
    with pytest.raises(TaskNotEnabledError, match="The task token_embed is not supported") as refused:
        SelectTask(Task.TOKEN_EMBED)(program)
    assert "Choose one of: embed, or compile with prefill" in str(refused.value)
    with pytest.raises(TaskNotEnabledError, match="The task classify is not supported"):
        SelectTask(Task.CLASSIFY)(program)


def test_every_task_has_rules_and_an_output_that_answers_it():
    assert list(TASK_RULES) == list(Task)
    assert all(rules.outputs for rules in TASK_RULES.values())


def test_every_attention_that_the_task_reads_stays(analysed):
    """All layers feed every output here, so all stay, and so do their verdicts."""
    whole = analysed("gemma2")
    program = prepare(whole, Task.EMBED)
    assert program.nodes.attention == whole.nodes.attention
    assert program.decision.route == whole.decision.route


def test_leaves_the_whole_program_alone(analysed):
    whole = analysed("qwen2-mixed-window", "AutoModelForCausalLM")
    text, weights, outputs = str(whole.graph.graph), set(whole.graph.state_dict), whole.signature.outputs
    for task in (Task.EMBED, Task.GENERATE):
        SelectTask(task)(whole)
    assert (str(whole.graph.graph), set(whole.graph.state_dict), whole.signature.outputs) == (text, weights, outputs)


@pytest.mark.parametrize("kind", [PoolKind.CLS, PoolKind.LAST])
def test_pooling_that_was_asked_for_is_in_the_graph(tiny, kind):
    model = tiny("bert", num_hidden_layers=1)
    made = trace(checkpoint(model), pools=(kind,))
    program = SelectTask(Task.EMBED)(analyse(made.program, made.behaviour))
    ids = token_ids(5)
    with torch.no_grad():
        rows = model(ids).last_hidden_state[0]
    (got,), _ = graphs.run(program.graph, fed(program, ids))
    expected = {PoolKind.CLS: rows[0], PoolKind.LAST: rows[-1]}[kind]
    assert (got[0] - expected).abs().max() <= 1e-5
