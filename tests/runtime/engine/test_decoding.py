"""Generation: whatever shares a step, and however it is cut, each text is what the eager model makes of it alone."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch

from headrace.backends.reference import Reference
from headrace.errors import InputError, OutOfMemoryError, TargetError
from headrace.ir import Program, State
from headrace.runtime.engine.scheduler import Scheduler
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.state.model_state import EncoderOnlyState
from tests.generating import BLOCK, cached, choose, generator, greedy, prompts, run

CAUSAL = "AutoModelForCausalLM"
DECODERS = ("llama", "gpt2", "gemma3", "mistral", "bloom", "llama4-chunked", "qwen2-mixed-window")
HYBRIDS = ("qwen3-next", "mamba2", "rwkv", "lfm2", "recurrent-gemma", "xlstm")
NEW = 8


class Case:
    """A tiny model, its cached program, some texts and what is right for them."""

    def __init__(self, model: Any, program: Program) -> None:
        self.model, self.program = model, cached(program)
        vocabulary = program.signature.vocabulary
        self.texts = prompts(vocabulary, 5, 17, 3, 11)
        # Begins as the second does, and goes on otherwise.
        self.texts.append(self.texts[1][: 3 * BLOCK + 1] + prompts(vocabulary, 3, seed=9)[0])
        self.right = [greedy(model, text, NEW) for text in self.texts]


@pytest.fixture(scope="session")
def case(tiny: Any, analysed: Any) -> Any:
    made: dict[str, Case] = {}

    def of(name: str) -> Case:
        if name not in made:
            made[name] = Case(tiny(name, CAUSAL), analysed(name, CAUSAL))
        return made[name]

    return of


@pytest.mark.parametrize("tokens", [6, 64])
@pytest.mark.parametrize("name", [*DECODERS, *HYBRIDS])
def test_texts_in_one_batch_are_as_each_alone(case: Any, name: str, tokens: int) -> None:
    """With six tokens a step every prompt comes in pieces, some of one token, beside tokens of the others."""
    one: Case = case(name)
    loop = generator(one.program, tokens)
    assert run(loop, one.texts, NEW) == one.right
    # Again, on what the first left: prefixes that are known, rows and blocks that were used.
    assert run(loop, one.texts[::-1], NEW) == one.right[::-1]
    assert not loop.lane.state.store.used()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["gemma3", "qwen3-next", "llama4-chunked", "rwkv"])
def test_texts_that_join_and_leave(case: Any, name: str, seed: int) -> None:
    one: Case = case(name)
    loop, chance = generator(one.program, 7), random.Random(seed)
    sequences: dict[Sequence, int] = {}
    waiting = list(range(len(one.texts))) * 2
    aborted = set()
    while waiting or any(not sequence.finished for sequence in sequences):
        if waiting and chance.random() < 0.5:
            text = waiting.pop()
            sequences[loop.submit(one.texts[text], NEW)] = text
        if sequences and chance.random() < 0.1:
            leaving = chance.choice(list(sequences))
            if not leaving.finished:
                loop.abort(leaving)
                aborted.add(leaving)
        loop.step()
    for sequence, text in sequences.items():
        if sequence not in aborted:
            assert sequence.made == one.right[text]
    assert not loop.lane.state.store.used()


# Eight ways in which engines went wrong.


def test_a_state_row_that_is_used_again_is_not_read(case: Any) -> None:
    one: Case = case("mamba2")
    loop = generator(one.program, sequences=1)
    for text, right in zip(one.texts, one.right, strict=True):
        assert run(loop, [text], NEW) == [right]


def test_a_state_row_of_an_aborted_text_is_not_read(case: Any) -> None:
    one: Case = case("qwen3-next")
    loop = generator(one.program, 4, sequences=1)
    lost = loop.submit(one.texts[1], NEW)
    for _ in range(3):
        loop.step()
    row = lost.held.row
    loop.abort(lost)
    after = loop.submit(one.texts[0], NEW)
    loop.step()
    assert after.held.row == row
    loop.run([after])
    assert after.made == one.right[0]


def test_a_first_piece_begins_from_nothing_and_the_next_does_not(case: Any) -> None:
    """A step in which one text begins and another goes on, both with several tokens."""
    one: Case = case("mamba2")
    loop = generator(one.program, 8)
    first = loop.submit(one.texts[1], NEW)
    loop.step()
    assert first.held.count == 8
    second = loop.submit(one.texts[3], NEW)
    loop.scheduler.tokens = 20
    loop.step()
    assert (first.held.count, second.held.count) == (17, 11)
    loop.run([first, second])
    assert [first.made, second.made] == [one.right[1], one.right[3]]


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("name", ["lfm2", "mamba2", "rwkv"])
def test_pieces_shorter_than_a_convolution(case: Any, name: str, tokens: int) -> None:
    one: Case = case(name)
    assert run(generator(one.program, tokens), one.texts[:2], NEW) == one.right[:2]


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3-next", "mamba2"])
def test_a_known_prefix_is_found_and_answers_as_one_that_is_computed(case: Any, name: str) -> None:
    one: Case = case(name)
    loop = generator(one.program, 3 * BLOCK)
    assert run(loop, [one.texts[1]], NEW) == [one.right[1]]
    again = loop.submit(one.texts[4], NEW)
    loop.step()
    assert again.held.count == len(one.texts[4])
    assert loop.tokens_known == 3 * BLOCK
    loop.run([again])
    assert again.made == one.right[4]


def test_a_prefix_that_only_begins_alike_is_not_taken(case: Any) -> None:
    """Equal to the last token of its first block but one."""
    one: Case = case("llama")
    loop = generator(one.program)
    assert run(loop, [one.texts[1]], NEW) == [one.right[1]]
    other = list(one.texts[1])
    other[BLOCK - 1] = other[BLOCK - 1] % 90 + 3
    assert run(loop, [other], NEW) == [greedy(one.model, other, NEW)]
    assert loop.tokens_known == 0


def test_a_text_of_another_kind_between_two_tokens(case: Any) -> None:
    """A prompt of which one token is asked for, as a vector would be, between two steps of another text."""
    one: Case = case("qwen3-next")
    loop = generator(one.program)
    first = loop.submit(one.texts[0], NEW)
    for _ in range(3):
        loop.step()
    between = loop.submit(one.texts[1], 1)
    loop.run([first, between])
    assert (first.made, between.made) == (one.right[0], one.right[1][:1])


@pytest.mark.parametrize("window", [1, 3, 4, 5])
def test_a_window_remembers_as_many_keys_as_it_shows(tiny: Any, analysed: Any, window: int) -> None:
    """Of a window that is smaller, as large and larger than a block, long past it, in pieces and token by token."""
    config = {"sliding_window": window}
    model, program = tiny("mistral", CAUSAL, **config), cached(analysed("mistral", CAUSAL, **config))
    (text,) = prompts(program.signature.vocabulary, 23)
    for tokens in (3, 64):
        loop = generator(program, tokens)
        sequence = loop.submit(text, NEW)
        loop.run([sequence])
        assert sequence.made == greedy(model, text, NEW)
    loop = generator(program, 64)
    sequence = loop.submit(text, NEW)
    loop.step()
    (table,) = sequence.held.tables
    held = [place for place, block in enumerate(table) if block >= 0]
    assert held == list(range(max(0, len(text) - window + 1) // BLOCK, -(-len(text) // BLOCK)))


# What a step is: all of it, or nothing.


def failing(loop: Any, after: int) -> None:
    """Have the loop's executable fail once, when it has written its caches."""
    step, calls = loop.lane.state.step, iter(range(1000))

    def failed(executable: Any, inputs: Any) -> Any:
        output = step(executable, inputs)
        if next(calls) == after:
            raise RuntimeError("the device fell off")
        return output

    loop.lane.state.step = failed


@pytest.mark.parametrize("name", ["llama", "mamba2"])
@pytest.mark.parametrize("after", [0, 2, 6])
def test_a_step_that_fails_leaves_no_trace(case: Any, name: str, after: int) -> None:
    one: Case = case(name)
    loop = generator(one.program, 9)
    sequences = [loop.submit(text, NEW) for text in one.texts]
    failing(loop, after)
    for _ in range(after):
        loop.step()
    with pytest.raises(RuntimeError, match="fell off"):
        loop.step()
    assert not loop.lane.state.store.used() or loop.scheduler.running
    while any(not sequence.finished for sequence in sequences):
        loop.step()
    assert [sequence.made for sequence in sequences] == one.right
    assert not loop.lane.state.store.used()


def test_an_error_ends_the_texts_of_a_call_and_no_others(case: Any) -> None:
    one: Case = case("llama")
    loop = generator(one.program, 9)
    other = loop.submit(one.texts[0], NEW)
    failing(loop, 1)
    mine = [loop.submit(text, NEW) for text in one.texts[1:3]]
    with pytest.raises(RuntimeError, match="fell off"):
        loop.run(mine)
    assert [sequence.finished for sequence in mine] == ["abort"] * 2
    loop.run([other])
    assert other.made == one.right[0]
    assert not loop.lane.state.store.used()


class Counting(Scheduler):
    """Counts how often a text begins anew."""

    count = 0

    def set_back(self, sequence: Sequence) -> None:
        self.count += 1
        super().set_back(sequence)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3-next"])
def test_texts_that_find_no_room_wait_and_are_right(case: Any, name: str) -> None:
    """Caches for about one text and a half: the last to come are set back, more than once."""
    one: Case = case(name)
    whole: int = generator(one.program).lane.state.store.bytes
    blocks = 64 if one.program.form.groups else 8
    loop = generator(one.program, 12, limit=whole // blocks * (7 if "qwen" not in name else 14))
    loop.scheduler = Counting(loop.lane.state, 12, 8)
    assert run(loop, one.texts[:4], NEW) == one.right[:4]
    assert loop.scheduler.count
    assert not loop.lane.state.store.used()


def test_a_text_that_can_never_fit_is_refused(case: Any) -> None:
    one: Case = case("llama")
    loop = generator(one.program, limit=2 * 4 * 2 * 8 * 4 * 4 * 2)
    with pytest.raises(InputError, match=r"A prompt has 200 tokens; the caches hold \d+ at most"):
        loop.submit([5] * 200, 1)
    grows = loop.submit(one.texts[0], 500)
    with pytest.raises(OutOfMemoryError, match="finds no room in the caches though it is alone"):
        loop.run([grows])
    assert not loop.lane.state.store.used()


def test_an_empty_prompt_is_refused(case: Any) -> None:
    with pytest.raises(InputError, match="A prompt has no token"):
        generator(case("llama").program).submit([], 1)


def test_a_program_without_caches_keeps_nothing(analysed: Any) -> None:
    program = analysed("bert", "AutoModel")
    assert program.decision.route.state is State.ENCODER_ONLY
    state = EncoderOnlyState(program)
    state.keep_in(Reference())
    assert state.store is None


def test_only_rows_that_are_asked_for_reach_the_head(case: Any) -> None:
    one: Case = case("llama")
    loop, rows = generator(one.program, 6), []

    def seen(logits: torch.Tensor, sequences: Any) -> None:
        rows.append((logits.shape[1], len(sequences)))
        choose(logits, sequences)

    loop._choose = seen
    run(loop, one.texts[:3], 2)
    assert all(made == asked for made, asked in rows)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_ends_what_its_parent_began(case: Any) -> None:
    """It answers texts of its own, and raises for the one that it has half of."""
    one: Case = case("llama")
    loop = generator(one.program)
    begun = loop.submit(one.texts[1], NEW)
    loop.step()
    reader, writer = os.pipe()
    if not (child := os.fork()):
        own = run(loop, [one.texts[0]], NEW) == [one.right[0]]
        told = own and isinstance(begun.error, TargetError) and not loop.lane.state.store.used()
        os.write(writer, b"1" if told else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    loop.run([begun])
    assert begun.made == one.right[1]
