"""A compiled model: texts or token ids in, answers out, in the callers' order."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from headrace.backends.interface import Backend
from headrace.backends.several import Several
from headrace.errors import ArtifactError, InputError, warn
from headrace.ir import PER_TOKEN_OUTPUTS, CacheDtype, Layout, Program, Quantized, Task
from headrace.runtime.arrays import Arrays
from headrace.runtime.engine.engine import Array, Engine
from headrace.runtime.engine.lane import Lane
from headrace.runtime.generate.generation import Generation
from headrace.runtime.methods.embedding import Embedding
from headrace.runtime.methods.iterating import Iterating
from headrace.runtime.methods.labelling import Labelling
from headrace.runtime.methods.one_pass import run
from headrace.runtime.ragged import Ragged, as_ragged
from headrace.runtime.state.model_state import ModelState, state_class
from headrace.runtime.tasks.answers.output import NUMPY, as_output
from headrace.runtime.tasks.generate import Part, generate, generate_iter
from headrace.runtime.tasks.interface import Call, Options, Requests, require_known
from headrace.runtime.tasks.raw import Raw, parted, raw
from headrace.runtime.tasks.registry import answering
from headrace.runtime.tasks.score import Ranked, ranked, read_documents
from headrace.runtime.text.prefetch import WHOLE
from headrace.runtime.text.texts import Texts
from headrace.runtime.text.tokenizer.own import own_copy
from headrace.runtime.text.validate import counts
from headrace.runtime.tools.inspect.report import explain
from headrace.runtime.views import frame, line
from headrace.tasks import Tasks, first_runnable, runnable, select


class CompiledModel(Embedding, Labelling, Iterating):
    """What `headrace.compile` returns. Each task is a method; calling the model takes token ids.

    Texts come alone or in any iterable but a mapping, a set or a table: a tuple holds requests as a list does. A pair
    of texts is a tuple of two inside it.

    Every text task takes the options of `headrace.runtime.tasks.interface.Options`: `truncate`, `max_length`,
    `batch_size` and `progress`. A text that is there more than once is computed once a call. Tasks that answer arrays
    take `output`, and each has a form over iterators, as `embed_iter`.
    """

    def __init__(  # noqa: PLR0913 - each is an option of its own, and plain
        self,
        program: Program,
        backend: Backend,
        tokenizer: Any,
        *,
        task: str | None = None,
        max_length: int | None = None,
        token_budget: int | None = None,
        cache_bytes: int | None = None,
        kv_cache_dtype: CacheDtype | None = None,
        lanes: Mapping[str, Lane] | None = None,
        side_files: Mapping[str, str | None] | None = None,
        quantize: str | None = None,
        force: bool = False,
        state: type[ModelState] | None = None,
        read_from: tuple[str, str, bool | None] | None = None,
    ) -> None:
        """Take an analysed program; nothing is compiled before `warm` or the first request.

        Args:
            tokenizer: one that nobody else holds.
            side_files: texts that an exported model's folder holds too, by their path there; None for what cannot be
                copied, see `headrace.runtime.artifact.manifest.require_own`.
            kv_cache_dtype: in what keys and values are kept; one that the backend runs.
            quantize: the scheme in which large linear layers multiply; one that the backend runs.
            force: keep a quantised program whose answers fail the gate.
            state: the class of the state that runs the program; None takes what its route names.
            read_from: of a model that is read back, the folder, target and trust that `headrace.load` was given.

        Raises:
            TaskNotEnabledError: `task` is not supported.
            ArtifactError: the route names a custom state that is not registered here.
        """
        self.program, self._tokenizer = program, tokenizer
        self.task, warning = select(program, task)
        if warning:
            warn(warning)
        self._first, self._kept = 0, dict[Any, Any]()
        self.max_length, self.side_files = max_length, dict(side_files or {})
        self.read_from = read_from
        if isinstance(backend, Several):
            self.engine = _shared(
                program, backend, tokenizer, lanes=lanes, state=state or state_class(program), saved=read_from,
                options={
                    "task": task, "max_length": max_length, "token_budget": token_budget, "cache_bytes": cache_bytes,
                    "kv_cache_dtype": kv_cache_dtype, "quantize": quantize, "force": force,
                },
            )  # fmt: skip
        else:
            self.engine = Engine(
                program, backend, token_budget, lanes, quantize, force, state, cache_bytes, kv_cache_dtype
            )  # fmt: skip
        if self.engine.compiler.in_pieces and not counts(token_budget):
            raise InputError(f"token_budget is {token_budget!r}; an int of 1 and above is accepted.")
        longest = None if self.engine.compiler.in_pieces else token_budget
        self._reader: Texts | Arrays = (
            Arrays(program, max_length, longest)
            if program.signature.arrays
            else Texts(tokenizer, program, max_length, longest)
        )

    @cached_property
    def tokenizer(self) -> Any:
        """A copy of the tokenizer that the model reads with, None without one: what is done to it changes no answer."""
        return own_copy(self._tokenizer)

    def save(self, folder: str | Path) -> Path:
        """Write what has been compiled so far, the tokenizer and every decision to a folder for `headrace.load`."""
        from headrace.runtime.artifact.saved_model import save

        return save(self, folder, self._tokenizer)

    def export_onnx(
        self,
        folder: str | Path,
        *,
        profile: str = "std",
        dtype: str = "float32",
        task: str | None = None,
        **options: Any,
    ) -> Path:
        """Write the model for onnxruntime, with its tokenizer and every decision: `headrace.load` needs no torch.

        Args:
            profile: "std" (onnxruntime, Transformers.js), "fast" (onnxruntime through Headrace) or "portable" (plain
                operators for older runtimes).
            dtype: of the weights: "float32", "float16", "int8" or "int4".
            task: whose outputs the graph has; None takes the model's.

        Other options are those of `headrace.runtime.artifact.export_onnx.export_onnx`.

        Raises:
            VerifyError: the exported model does not answer as this one; nothing is written.
            ArtifactError: this model was read back from a folder, without the graph that is exported.
        """
        from headrace.runtime.artifact.export_onnx import export_onnx, require_open

        require_open(options, ("max_length", "token_budget", "tokenizer"), "headrace.compile")
        return export_onnx(
            self.program, folder, tokenizer=self._tokenizer, side_files=self.side_files,
            task=task or self.task, profile=profile, dtype=dtype, max_length=self.max_length,
            token_budget=self.engine.token_budget, **options,
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        """What was read back from a folder pickles as that folder, which whoever unpickles it loads as it was loaded.

        Raises:
            ArtifactError: the model lies in no folder, and executables are not pickled.
        """
        from headrace.runtime.artifact.saved_model import load

        if self.read_from is None:
            raise ArtifactError(
                f"{self!r} was compiled in memory, and executables are not pickled or copied. Save it, and pickle what "
                "is read back: model.save(FOLDER), headrace.load(FOLDER)."
            )
        return load, self.read_from, {"_first": self._first}

    def close(self) -> None:
        """End the processes of a target of several devices, which end by themselves with the model or with Python.

        Of a target of one device there are none.
        """
        self.engine.close()

    def __repr__(self) -> str:
        """The model, its tasks, target and dtype."""
        tasks = ", ".join(self.tasks) or "no task"
        return line("CompiledModel", self.program.source.name, f"{tasks}; {self.target}, {self.dtype}")

    def _repr_html_(self) -> str:
        """`explain` as a page, in notebooks."""
        return frame(self.explain("html"))

    def run(
        self, texts: Requests, tasks: Iterable[str], prompt: str | None = None, *, prompt_name: str | None = None,
        **options: Unpack[Options],
    ) -> dict[str, Any]:  # fmt: skip
        """What several tasks answer to the same texts, in one pass of the model, and the token ids that it read.

        Args:
            texts: as every task takes them; of a model that reads arrays, arrays.
            tasks: names among embed, token_embed, sparse_embed and multi_embed, as `("embed", "token_embed")`; each
                answers by the model's own options, multi_embed for documents.
            prompt: as for `embed`; it goes before the texts for all tasks.

        Returns:
            By each task's name what its method answers; by "token_ids" int64 [t] a text, special tokens included,
            whose places are those of token_embed's rows.

        Raises:
            TaskNotEnabledError: a task is not supported.
            InputError: a task that reads its texts in a way of its own.
        """
        return run(self._call(self._default(), **options), texts, tasks, prompt, prompt_name)

    def counting_from(self, first: int) -> CompiledModel:
        """The same model, whose messages number texts from `first`: for a list that is handed over in pieces.

        Raises:
            InputError: `first` is no int of 0 and above.
        """
        if not counts(first, least=0):
            raise InputError(f"first is {first!r}, a text's number; an int of 0 and above is accepted.")
        view = object.__new__(CompiledModel)
        view.__dict__.update(self.__dict__, _first=first)
        return view

    @property
    def tasks(self) -> Tasks:
        """The supported tasks, each with its reason; `.refused` lists what is offered and not enabled."""
        return Tasks(self.program.decision.tasks)

    @property
    def target(self) -> str:
        """The target that runs it, e.g. `cpu` or `cuda:1`."""
        return str(self.engine.backend.target)

    @property
    def dtype(self) -> str:
        """The dtype that it runs in."""
        return self.program.dtype

    @property
    def quantized(self) -> Quantized | None:
        """What is quantised and what that costs, of what was compiled first; None where nothing is."""
        return self.engine.described().form.quantized

    def as_text(self) -> str:
        """The program on a page."""
        return self.program.as_text()

    def explain(self, form: str = "text") -> str:
        """What the model's attention does, how it is routed and what it serves, as "text" or "html"."""
        described, plan = self.engine.described(), self.engine.plan()
        return explain(described, form, target=self.target, task=self.task, plan=plan)

    def warm(self, progress: bool | None = None) -> CompiledModel:
        """Compile for the default task now; where this version cannot run that one, for the first that it can."""
        if (task := first_runnable(self.program, self.task, self.engine.decodes)) is not None:
            self.engine.lane(task, progress)
        return self

    def __call__(
        self,
        token_ids: Sequence[Sequence[int]] | Ragged | Array,
        task: str | None = None,
        token_type_ids: Sequence[Sequence[int]] | Array | None = None,
    ) -> Any:
        """Raw outputs for token ids, one array a request: logits, vectors or rows before activation and labels.

        Requests may differ in length and hold no padding: every id that is given counts as text.

        Args:
            token_ids: a list of them, one sequence of int a request; or those of all requests in one array, which
                cost nothing a request: `headrace.Ragged`, an Arrow array of lists, or an array [requests, tokens].
            task: None takes the model's.
            token_type_ids: as token_ids, one for each.

        Returns:
            A list of float32 arrays: [width] for pooled tasks, [tokens, width] for token-level ones. Of ids in one
            array, the pooled ones in one array too, [requests, width]. Of a head that no other task is of, its arrays
            by name, as `raw` answers.

        Raises:
            InputError: the task is generate, whose answers are made a token at a time.
        """
        wanted = self._default() if task is None else task
        if isinstance(wanted, str) and wanted == Task.GENERATE:
            raise InputError(
                "generate answers by model.generate(...), which takes token ids too. For raw outputs name another "
                f"task: {', '.join(set(runnable(self.program)) - {Task.GENERATE}) or 'none is left'}."
            )
        # To check ids takes no time to speak of, unless the device is fast and could have begun.
        padded = self.engine.lane(wanted, progress=False).program.form.layout is Layout.PADDED
        sizes = WHOLE if padded else self.engine.sizes(wanted)
        whole = None if self.program.signature.arrays else as_ragged(token_ids)
        count, parts = self._reader.raw(token_ids if whole is None else whole, token_type_ids, sizes)
        if whole is not None and (read := self.engine.output(wanted)).kind not in PER_TOKEN_OUTPUTS:
            vectors = np.empty((count, read.width), np.float32)
            for places, rows in self.engine.answered(wanted, parts, count, progress=False):
                vectors[places] = rows
            return vectors
        answers = self.engine.run_parts(wanted, parts, count, progress=False)
        return parted(answers, self.program.facts.raw) if wanted == Task.RAW else answers

    def _default(self) -> Task:
        if self.task is None:
            select(self.program, "embed")  # raises the refusal that says why nothing is supported
        assert self.task is not None
        return self.task

    def answer(
        self, task: str | None, texts: Any, *, truncate: bool | str | None = None, batch_size: int | None = None,
        progress: bool | None = None, max_length: int | None = None, output: str = NUMPY, **options: Any,
    ) -> Any:  # fmt: skip
        """What the method of that name answers, for callers that have a task's name; options as there.

        Args:
            task: None takes the model's.

        Raises:
            TaskNotEnabledError: the task is not supported.
            TargetError: this version has no runtime for it.
        """
        chosen = self.engine.require(self._default() if task is None else task)
        call, function = self._call(chosen, truncate, batch_size, progress, max_length), answering(chosen).answer
        if chosen is not Task.GENERATE:
            require_known(options, [*inspect.signature(function).parameters][2:], f"of {chosen}")
        return as_output(function(call, texts, **options), output)

    def call(self, task: str) -> Call:
        """What answers a task, for who reads, runs and finishes requests of several callers together.

        Raises:
            TaskNotEnabledError, TargetError: as of `answer`.
        """
        return self._call(self.engine.require(task), None, None, False)

    def _call(
        self, task: Task, truncate: bool | str | None = None, batch_size: int | None = None,
        progress: bool | None = None, max_length: int | None = None, **unknown: Any,
    ) -> Call:  # fmt: skip
        require_known(unknown, Options.__annotations__, f"of {task} that every task has")
        reader = self._reader if max_length is None else self._reader.bounded(max_length)
        return Call(
            task, self.engine, reader, self._tokenizer, self._kept, max_length or self.max_length, self._first,
            truncate, batch_size, progress,
        )  # fmt: skip

    def rank(
        self, query: str, documents: Any, top_k: int | None = None, return_documents: bool = False, **options: Any
    ) -> list[Ranked]:
        """The documents, best first: by `score`, or of a model that only embeds, by the similarity to the query.

        Args:
            top_k: how many of the best; None ranks all.
            return_documents: whether each comes with its text.

        Other options are `score`'s; of a model that embeds `embed`'s, where a prompt is the query's.
        """
        listed = read_documents(documents, top_k)
        embeds = Task.SCORE not in self.tasks and Task.EMBED in self.tasks
        scores = self._similar(query, listed, **options) if embeds else self._scored(query, listed, **options)
        return ranked(scores, listed if return_documents else None, top_k)

    def _scored(self, query: str, documents: list[Any], **options: Any) -> Sequence[float]:
        return self.score([(query, document) for document in documents], **options)

    def _similar(self, query: str, documents: list[Any], **options: Any) -> Sequence[float]:
        own = {name: options.pop(name) for name in ("prompt", "prompt_name") if name in options}
        asked = self.embed(query, **own, **options) if own else self.embed_query(query, **options)
        if len(asked) != 1:
            raise InputError(f"query is {reprlib.repr(query)}; one text is accepted.")
        if not documents:
            return []
        found: list[float] = self.similarity(asked, self.embed_document(documents, **options))[0].tolist()
        return found

    def raw(self, texts: Requests, **options: Unpack[Options]) -> list[Raw]:
        """What the model's own head returns of each text or array, where no other task is of it.

        Such are pretraining heads, replaced tokens, speech recognition (CTC) and what a model returns besides its
        hidden rows.

        Returns:
            Of each text the float32 arrays that the model returns, by the model's own names: [tokens, ...] where there
            is a row a token, [...] where there is one of the text.

        Raises:
            TaskNotEnabledError: the head is one that another task is of, or returns what follows no text.
        """
        return raw(self._call(Task.RAW, **options), texts)

    def generate(
        self, prompts: Any, max_new_tokens: int | None = None, *, progress: bool | None = None, **options: Any
    ) -> list[Generation]:
        """What each prompt goes on with; `n` answers to each, one after another.

        Args:
            prompts: one or many: a text, a chat (a list of mappings with role and content), or token ids.
            max_new_tokens: None follows the folder, else 256.
            options: those of `headrace.runtime.generate.options.GenerateOptions` (temperature, top_k, top_p, min_p,
                repetition_penalty, presence_penalty, frequency_penalty, n, seed, stop, stop_token_ids, logprobs,
                logit_bias, min_new_tokens, ignore_eos, choice, json_schema, skip_special_tokens), which follow the
                folder's generation_config.json where they are not given, and `chat_template`, a mapping of options to
                the tokenizer's template.

        Raises:
            TaskNotEnabledError: the model does not generate.
            TargetError: it does, and this version cannot run it on this target.
            InputError: a prompt or an option that is not as accepted.
        """
        call = self._call(self.engine.require(Task.GENERATE), None, None, progress)
        return generate(call, prompts, max_new_tokens=max_new_tokens, **options)

    def generate_iter(self, prompts: Any, **options: Any) -> Iterator[Part]:
        """What each prompt goes on with, as it comes: parts of the answers, in the order in which they are made.

        Options and errors as of `generate`. Who stops reading ends what was begun.
        """
        return generate_iter(self._call(self.engine.require(Task.GENERATE), None, None, False), prompts, **options)


def _shared(*args: Any, **options: Any) -> Engine:
    from headrace.runtime.devices.start import shared_engine  # which needs torch

    return shared_engine(*args, **options)
