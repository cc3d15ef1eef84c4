"""generate: texts that go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from headrace.ir import Role
from headrace.runtime.engine.decoding import DecodingLoop
from headrace.runtime.engine.request import Request
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Answer
from headrace.runtime.generate.generation import Generation
from headrace.runtime.generate.writer import Writer
from headrace.runtime.progress import bar
from headrace.runtime.tasks.interface import Answering, Call, Command
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prefetch import WHOLE

Sources = dict[int, Request | None]


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
) -> list[Generation]:
    """`generate` with the options that its command has."""
    return generate(
        call, prompts, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop=stop,
        seed=seed,
    )  # fmt: skip


def generate(
    call: Call, prompts: Any, chat_template: dict[str, Any] | None = None, **options: Any
) -> list[Generation]:  # fmt: skip
    """See `CompiledModel.generate`."""
    loop, answers, sources = _begun(call, prompts, chat_template, options)
    sequences = [_submitted(loop, answer, sources[place]) for place, answer in answers]
    with bar(f"{call.task}: texts", len(sequences), call.progress) as shown:
        loop.run(sequences, lambda _: shown.advance(1))
    return [answer.generation() for _, answer in answers]


def generate_iter(
    call: Call, prompts: Any, chat_template: dict[str, Any] | None = None, **options: Any
) -> Iterator[Part]:
    """See `CompiledModel.generate_iter`."""
    loop, answers, sources = _begun(call, prompts, chat_template, options)
    growing = {_submitted(loop, answer, sources[place]): place for place, answer in answers}
    told = Counter[Answer]()  # tokens of each
    try:
        while growing:
            loop.step()
            for sequence in list(growing):
                if sequence.error is not None:
                    raise sequence.error
                answer: Answer = sequence.request
                text, new = answer.take(), tuple(answer.new[told[answer] :].tolist())
                told[answer] += len(new)
                whole = answer.generation() if sequence.finished else None
                if text or new or whole:
                    yield Part(growing[sequence], answer.index, text, new, whole)
                if whole:
                    del growing[sequence]
    finally:
        for sequence in growing:  # who stops reading wants no more of them
            loop.abort(sequence)


def _begun(
    call: Call, prompts: Any, template: dict[str, Any] | None, given: dict[str, Any]
) -> tuple[DecodingLoop, list[tuple[int, Answer]], Sources]:
    """The loop, the answers with the places of their prompts, and what an encoder reads of each prompt."""
    loop = call.engine.decoding(call.progress)
    if (writer := call.kept.get(Writer)) is None:
        width = loop.lane.program.signature.outputs[0].width
        writer = call.kept[Writer] = Writer(call.program, width, call.tokenizer, call.max_length)
    if call.program.signature.arrays:
        listed = call.drawn(prompts)
        arrays = [
            one for part in call.reader.ahead(listed, first=call.first, sizes=WHOLE, truncate=None) for one in part
        ]
        return loop, writer.answers(listed, template, **given), dict(enumerate(arrays))
    answers = writer.answers(prompts, template, **given)
    encodes = call.program.signature.has(Role.TARGET_IDS)
    return loop, answers, {place: Encoded(answer.prompt) if encodes else None for place, answer in answers}


def _submitted(loop: DecodingLoop, answer: Answer, source: Request | None) -> Sequence:
    return loop.submit(answer.held.tolist(), answer, source)


def record(generation: Generation) -> dict[str, Any]:
    """An answer as JSON."""
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason.value,
        "tokens": len(generation.token_ids),
    }


TASK = Answering(answer, Command('What each text goes on with: {"text": "...", ...}.', record))
