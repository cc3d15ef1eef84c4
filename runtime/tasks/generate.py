"""generate: texts that go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from headrace.runtime.arrays import Given
from headrace.runtime.engine.decoding import DecodingLoop
from headrace.runtime.engine.request import Request
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Answer
from headrace.runtime.generate.generation import Generation
from headrace.runtime.generate.prompts import Prompts
from headrace.runtime.generate.writer import Writer
from headrace.runtime.places import Places
from headrace.runtime.progress import bar
from headrace.runtime.tasks.interface import Answering, Call, Command
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prefetch import WHOLE

if TYPE_CHECKING:
    from headrace.runtime.generate.beam_group import BeamGroup


@dataclass(frozen=True)
class Part:
    """Some more of one answer.

    Attributes:
        prompt: its place among the prompts; `index` is the answer's among those to it.
        text: what is new of it, as far as nothing that comes can change it.
        token_ids: the tokens that are new.
        generation: the whole, with the last part; None before.
    """

    prompt: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    generation: Generation | None = None


def answer(
    call: Call,
    prompts: Any,
    max_new_tokens: Annotated[int | None, "At most so many tokens."] = None,
    temperature: Annotated[float | None, "0 takes the likeliest token."] = None,
    top_k: Annotated[int | None, "How many of the likeliest tokens to draw from."] = None,
    top_p: Annotated[float | None, "The share of probability to draw from."] = None,
    stop: Annotated[str | None, "A string that ends a text."] = None,
    seed: Annotated[int | None, "Of what is drawn."] = None,
    beams: Annotated[int | None, "How many continuations to follow at once; 1 follows one."] = None,
) -> list[Generation]:
    """`generate` with the options that its command has."""
    return generate(
        call, prompts, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop=stop,
        seed=seed, beams=beams,
    )  # fmt: skip


def generate(
    call: Call, prompts: Any, chat_template: dict[str, Any] | None = None, **options: Any
) -> list[Generation]:  # fmt: skip
    """See `CompiledModel.generate`."""
    if call.engine.shares:
        whole = [part for part in generate_iter(call, prompts, chat_template, **options) if part.generation is not None]
        whole.sort(key=lambda part: (part.prompt, part.index))
        return [part.generation for part in whole if part.generation is not None]
    loop, begun = begin(call, prompts, chat_template, options)
    sequences = [submit(loop, one) for one in begun]
    with bar(f"{call.task}: texts", len(sequences), call.progress) as shown:
        loop.run(sequences, lambda _: shown.advance(1))
    return [one.answer.generation() for one in begun]


def generate_iter(
    call: Call, prompts: Any, chat_template: dict[str, Any] | None = None, **options: Any
) -> Iterator[Part]:
    """See `CompiledModel.generate_iter`."""
    if call.engine.shares:
        yield from call.engine.written(_prompts(call, prompts, chat_template), options)
        return
    loop, begun = begin(call, prompts, chat_template, options)
    growing = {submit(loop, one): one for one in begun}
    told: Counter[Answer | BeamGroup] = Counter()  # tokens of each
    try:
        while growing:
            loop.step()
            for sequence, (place, answer, _) in list(growing.items()):
                if sequence.error is not None:
                    raise sequence.error
                text, new = answer.take(), tuple(answer.new[told[answer] :].tolist())
                told[answer] += len(new)
                whole = answer.generation() if sequence.finished else None
                if text or new or whole:
                    yield Part(place, answer.index, text, new, whole)
                if whole:
                    del growing[sequence]
    finally:
        for sequence in growing:  # who stops reading wants no more of them
            loop.abort(sequence)


def _prompts(call: Call, prompts: Any, template: dict[str, Any] | None) -> list[Any]:
    """What goes to the processes of other devices: token ids of each prompt, or the array that an encoder reads."""
    call.lane()
    if call.program.signature.arrays:
        given = call.reader.ahead(call.drawn(prompts), places=Places(call.first), sizes=WHOLE, truncate=None)
        return [one.values for one in chain.from_iterable(given) if isinstance(one, Given)]
    return list(Prompts(call.tokenizer, call.program, call.max_length).read(prompts, template))


class Begun(NamedTuple):
    """An answer, the place of its prompt, and what an encoder reads of that."""

    place: int
    answer: Answer | BeamGroup
    source: Request | None


def begin(
    call: Call, prompts: Any, template: dict[str, Any] | None, given: dict[str, Any]
) -> tuple[DecodingLoop, list[Begun]]:
    """The answers to each prompt before their first token, and the loop that makes them; errors as of `generate`."""
    loop = call.engine.decoding(call.progress)
    if (writer := call.kept.get(Writer)) is None:
        width = loop.lane.program.signature.outputs[0].width
        writer = call.kept[Writer] = Writer(call.program, width, call.tokenizer, call.max_length)
    sources: list[Request] = []
    if call.program.signature.arrays:
        prompts = call.drawn(prompts)
        parts = call.reader.ahead(prompts, places=Places(call.first), sizes=WHOLE, truncate=None)
        sources = list(chain.from_iterable(parts))
    begun = []
    for place, (ids, answers) in enumerate(writer.asked(loop, prompts, template, **given)):
        source = sources[place] if sources else Encoded(ids) if writer.encodes else None
        begun += [Begun(place, answer, source) for answer in answers]
    return loop, begun


def submit(loop: DecodingLoop, begun: Begun) -> Sequence:
    """Have the loop make an answer; errors as of its `submit`."""
    return loop.submit(begun.answer.start.held.tolist(), begun.answer, begun.source)


def record(generation: Generation) -> dict[str, Any]:
    """An answer as JSON."""
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason.value,
        "tokens": len(generation.token_ids),
    }


TASK = Answering(answer, Command('What each text goes on with: {"text": "...", ...}.', record))
