"""generate: texts that go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from headrace.runtime.engine.decoding import DecodingLoop
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Answer
from headrace.runtime.generate.generation import Generation
from headrace.runtime.generate.writer import Writer
from headrace.runtime.progress import bar
from headrace.runtime.tasks.interface import Answering, Call, Command


@dataclass(frozen=True)
class Part:
    """Some more of one answer.

    Attributes:
        prompt: its place among the prompts; `index` is the answer's among those to it.
        text: what is new of it.
        generation: the whole, with the last part; None before.
    """

    prompt: int
    index: int
    text: str
    generation: Generation | None = None


def generate(
    call: Call,
    prompts: Any,
    max_new_tokens: Annotated[int | None, "At most so many tokens."] = None,
    temperature: Annotated[float | None, "0 takes the likeliest token."] = None,
    top_p: Annotated[float | None, "The share of probability to draw from."] = None,
    seed: Annotated[int | None, "Of what is drawn."] = None,
    chat_template: dict[str, Any] | None = None,
    **options: Any,
) -> list[Generation]:
    """See `CompiledModel.generate`."""
    given = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed, **options}
    loop, answers = _begun(call, prompts, chat_template, given)
    sequences = [_submitted(loop, answer) for _, answer in answers]
    with bar(f"{call.task}: texts", len(sequences), call.progress) as shown:
        loop.run(sequences, lambda _: shown.advance(1))
    return [answer.generation() for _, answer in answers]


def generate_iter(
    call: Call, prompts: Any, chat_template: dict[str, Any] | None = None, **options: Any
) -> Iterator[Part]:
    """See `CompiledModel.generate_iter`."""
    loop, answers = _begun(call, prompts, chat_template, options)
    growing = {_submitted(loop, answer): place for place, answer in answers}
    try:
        while growing:
            loop.step()
            for sequence in list(growing):
                if sequence.error is not None:
                    raise sequence.error
                answer: Answer = sequence.request
                text, whole = answer.take(), answer.generation() if sequence.finished else None
                if text or whole:
                    yield Part(growing[sequence], answer.index, text, whole)
                if whole:
                    del growing[sequence]
    finally:
        for sequence in growing:  # who stops reading wants no more of them
            loop.abort(sequence)


def _begun(
    call: Call, prompts: Any, template: dict[str, Any] | None, given: dict[str, Any]
) -> tuple[DecodingLoop, list[tuple[int, Answer]]]:
    loop = call.engine.decoding(call.progress)
    if (writer := call.kept.get(Writer)) is None:
        width = loop.lane.program.signature.outputs[0].width
        writer = call.kept[Writer] = Writer(call.program, width, call.tokenizer, call.max_length)
    return loop, writer.answers(prompts, template, **given)


def _submitted(loop: DecodingLoop, answer: Answer) -> Sequence:
    return loop.submit(answer.held.tolist(), answer)


def record(generation: Generation) -> dict[str, Any]:
    """An answer as JSON."""
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason.value,
        "tokens": len(generation.token_ids),
    }


TASK = Answering(generate, Command('What each text goes on with: {"text": "...", ...}.', record))
