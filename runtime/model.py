"""A compiled model: texts or token ids in, answers out, in the callers' order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from headrace.backends.interface import Backend
from headrace.errors import ArtifactError, InputError, warn
from headrace.ir import OutputKind, Program, Quantized, Task
from headrace.runtime.arrays import Arrays
from headrace.runtime.engine.engine import Array, Engine
from headrace.runtime.engine.lane import Lane
from headrace.runtime.generate.generation import Generation
from headrace.runtime.state.model_state import ModelState
from headrace.runtime.tasks.classify import Classification, classify
from headrace.runtime.tasks.embed import embed
from headrace.runtime.tasks.fill_mask import Fill, fill_mask
from headrace.runtime.tasks.generate import Part, generate, generate_iter
from headrace.runtime.tasks.interface import Call
from headrace.runtime.tasks.multi_embed import multi_embed
from headrace.runtime.tasks.precision import require_ranges
from headrace.runtime.tasks.raw import Raw, parted, raw
from headrace.runtime.tasks.registry import answering
from headrace.runtime.tasks.score import Ranked, ranked, read_documents, score
from headrace.runtime.tasks.sparse_embed import SparseVectors, sparse_embed, vocabulary_of, words
from headrace.runtime.tasks.token_classify import Aggregation, Entity, token_classify
from headrace.runtime.tasks.token_embed import token_embed
from headrace.runtime.tasks.vectors import similarity, similarity_pairwise
from headrace.runtime.text.own_tokenizer import own_copy
from headrace.runtime.text.prefetch import PACKED, WHOLE
from headrace.runtime.text.prompts import side_prompt
from headrace.runtime.text.tokenizer import Texts
from headrace.runtime.text.validate import counts
from headrace.runtime.tools.inspect.report import explain
from headrace.tasks import Tasks, first_runnable, runnable, select

Pair = tuple[str, str]
# How many texts an iterator is read ahead, so that like lengths can meet in a batch.
AHEAD = 1024


class CompiledModel:
    """What `headrace.compile` returns. Each task is a method; calling the model takes token ids.

    Texts come alone or in any iterable but a mapping, a set or a table: a tuple holds requests as a list does. A pair
    of texts is a tuple of two inside it.

    Every text task takes `truncate` (None follows a sentence-transformers folder, else a long text is an error),
    `batch_size` (None packs by tokens) and `progress` (None shows a bar on a terminal).
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        tokenizer: Any,
        *,
        task: str | None = None,
        max_length: int | None = None,
        token_budget: int | None = None,
        lanes: Mapping[OutputKind, Lane] | None = None,
        side_files: Mapping[str, str | None] | None = None,
        quantize: str | None = None,
        force: bool = False,
        state: type[ModelState] | None = None,
    ) -> None:
        """Take an analysed program; nothing is compiled before `warm` or the first request.

        Args:
            tokenizer: one that nobody else holds.
            side_files: texts that an exported model's folder holds too, by their path there; None for what cannot be
                copied, see `headrace.runtime.artifact.manifest.require_own`.
            quantize: the scheme in which large linear layers multiply; one that the backend runs.
            force: keep a quantised program whose answers fail the gate.
            state: the class of the state that runs the program; None takes what its route names.

        Raises:
            TaskNotEnabledError: `task` is not supported.
            ArtifactError: the route names a custom state that is not registered here.
        """
        self.program, self._tokenizer = program, tokenizer
        self.task, warning = select(program, task)
        if warning:
            warn(warning)
        self._reader: Texts | Arrays = (
            Arrays(program, max_length, token_budget)
            if program.signature.arrays
            else Texts(tokenizer, program, max_length, token_budget)
        )
        self._first, self._kept = 0, dict[Any, Any]()
        self.max_length, self.side_files = max_length, dict(side_files or {})
        self.engine = Engine(program, backend, token_budget, lanes, quantize, force, state)

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
            dtype: of the weights: "float32", "float16" or "int8".
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

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: executables are neither.

        Raises:
            ArtifactError: always.
        """
        raise ArtifactError(
            "A compiled model is not pickled or copied. Save it to a folder, and headrace.load that in every process."
        )

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
        token_ids: Sequence[Sequence[int]] | Array,
        task: str | None = None,
        token_type_ids: Sequence[Sequence[int]] | Array | None = None,
    ) -> list[Any]:
        """Raw outputs for token ids, one array a request: logits, vectors or rows before activation and labels.

        Requests may differ in length and hold no padding: every id that is given counts as text.

        Returns:
            float32 arrays: [width] for pooled tasks, [tokens, width] for token-level ones. Of a head that no other
            task is of, its arrays by name, as `raw` answers.

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
        sizes = PACKED if self.engine.sizes(wanted, progress=False) is PACKED else WHOLE
        count, parts = self._reader.raw(token_ids, token_type_ids, sizes)
        answers = self.engine.run_parts(wanted, parts, count, progress=False)
        return parted(answers, self.program.facts.raw) if wanted == Task.RAW else answers

    def _default(self) -> Task:
        if self.task is None:
            select(self.program, "embed")  # raises the refusal that says why nothing is supported
        assert self.task is not None
        return self.task

    def answer(
        self, task: str | None, texts: Any, *, truncate: bool | None = None, batch_size: int | None = None,
        progress: bool | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """What the method of that name answers, for callers that have a task's name; options as there.

        Args:
            task: None takes the model's.

        Raises:
            TaskNotEnabledError: the task is not supported.
            TargetError: this version has no runtime for it.
        """
        chosen = self.engine.require(self._default() if task is None else task)
        return answering(chosen).answer(self._call(chosen, truncate, batch_size, progress), texts, **options)

    def _call(self, task: Task, truncate: bool | None, batch_size: int | None, progress: bool | None) -> Call:
        return Call(
            task, self.engine, self._reader, self._tokenizer, self._kept, self.max_length, self._first, truncate,
            batch_size, progress,
        )  # fmt: skip

    def embed(
        self,
        texts: str | Iterable[str],
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt: str | None = None,
        *,
        prompt_name: str | None = None,
        precision: str | None = None,
        ranges: Any = None,
        truncate: bool | None = None,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> Array:
        """One vector a text, float32 [n, d].

        Args:
            normalize: to unit length; None does as the sentence-transformers folder does, else not.
            dimensions: keep the first so many, for models trained so (Matryoshka); applied before normalising.
            prompt: a prompt's name in the folder, or its text; None takes the folder's default.
            prompt_name: a prompt's name in the folder, and nothing else.
            precision: "int8" and "uint8" count in 255 steps between each dimension's ranges; "binary" and "ubinary"
                keep the sign alone, eight a number. None is "float32".
            ranges: of int8 and uint8, [2, d]: `headrace.ranges_of` a representative set; None takes those of the
                answer itself.
        """
        call = self._call(Task.EMBED, truncate, batch_size, progress)
        return embed(call, texts, normalize, dimensions, prompt, prompt_name, precision, ranges)

    def embed_query(self, texts: str | Iterable[str], **options: Any) -> Array:
        """`embed` by the folder's prompt for queries, where it has one. Options as there, but for the prompt."""
        return self.embed(texts, prompt=side_prompt(self.program, "query"), **options)

    def embed_document(self, texts: str | Iterable[str], **options: Any) -> Array:
        """`embed` by the folder's prompt for documents, where it has one. Options as there, but for the prompt."""
        return self.embed(texts, prompt=side_prompt(self.program, "document"), **options)

    def embed_iter(self, texts: Iterable[str], **options: Any) -> Iterator[Array]:
        """One vector [d] a text, as they are drawn; reads the iterator some way ahead. Options as for `embed`.

        Raises:
            InputError: a precision that needs ranges, without them: those of some texts are not those of all.
        """
        require_ranges(options.get("precision"), options.get("ranges"))
        source, done = self._reader.drawn(texts), 0
        while ahead := list(islice(source, AHEAD)):
            yield from self.counting_from(self._first + done).embed(ahead, **options)
            done += len(ahead)

    def token_embed(
        self, texts: str | Iterable[str], prompt: str | None = None, *, prompt_name: str | None = None,
        truncate: bool | None = None, batch_size: int | None = None, progress: bool | None = None,
    ) -> list[Array]:  # fmt: skip
        """One vector a token, special tokens included: float32 [t, d] a text. Prompts are as for `embed`."""
        return token_embed(self._call(Task.TOKEN_EMBED, truncate, batch_size, progress), texts, prompt, prompt_name)

    def sparse_embed(
        self, texts: str | Iterable[str], prompt: str | None = None, *, prompt_name: str | None = None,
        max_active: int | None = None, truncate: bool | None = None, batch_size: int | None = None,
        progress: bool | None = None,
    ) -> SparseVectors:  # fmt: skip
        """One sparse vector a text, as (indices, weights), with `.csr()` for SciPy. Prompts are as for `embed`.

        Args:
            max_active: keep so many of the largest numbers; None does as the folder says, else keeps all.
        """
        call = self._call(Task.SPARSE_EMBED, truncate, batch_size, progress)
        return sparse_embed(call, texts, prompt, prompt_name, max_active)

    def multi_embed(
        self, texts: str | Iterable[str], side: str = "document", prompt: str | None = None, *,
        prompt_name: str | None = None, truncate: bool | None = None, batch_size: int | None = None,
        progress: bool | None = None,
    ) -> list[Array]:  # fmt: skip
        """A vector for each token of a text that scores, float32 [t, d] a text; `similarity` compares such texts.

        Args:
            side: "query" or "document": each is cut, filled up and scored in its own way, and has its own prompt.
            prompt: as for `embed`; None takes the side's, where the folder has one.
        """
        call = self._call(Task.MULTI_EMBED, truncate, batch_size, progress)
        return multi_embed(call, texts, side, prompt, prompt_name)

    def sparse_words(self, vectors: SparseVectors, top: int | None = None) -> list[list[tuple[str, float]]]:
        """The tokens and weights of each vector of `sparse_embed`, the heaviest first: `top` of them, None for all.

        Raises:
            InputError: the vectors are not over the tokenizer's vocabulary, or there is no tokenizer.
        """
        return [words(one, vocabulary_of(self._tokenizer, vectors.width), top) for one in vectors]

    def classify(
        self, texts: str | Iterable[str] | Iterable[Pair], prompt: str | None = None, *, raw: bool = False,
        prompt_name: str | None = None, truncate: bool | None = None, batch_size: int | None = None,
        progress: bool | None = None,
    ) -> list[Classification]:  # fmt: skip
        """The best label of each text or pair of texts, with every label's score. Prompts are as for `embed`.

        Args:
            texts: all of them texts, or all pairs: tuples of two inside a list, also where there is one pair alone.
            raw: the head's logits in place of scores.
        """
        call = self._call(Task.CLASSIFY, truncate, batch_size, progress)
        return classify(call, texts, prompt, raw, prompt_name)

    def score(
        self, pairs: Iterable[Pair], prompt: str | None = None, *, raw: bool = False, prompt_name: str | None = None,
        truncate: bool | None = None, batch_size: int | None = None, progress: bool | None = None,
    ) -> list[float]:  # fmt: skip
        """How well the two texts of each pair fit, by the head's one label; a pair alone is [(text, other)].

        Args:
            prompt: as for `embed`; it goes before the first of the two.
            raw: the head's logit in place of a score.
        """
        return score(self._call(Task.SCORE, truncate, batch_size, progress), pairs, prompt, raw, prompt_name)

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
        if not documents:
            return []
        found: list[float] = self.similarity(asked, self.embed_document(documents, **options))[0].tolist()
        return found

    def token_classify(
        self, texts: str | Iterable[str], aggregation: Aggregation = "none", *, truncate: bool | None = None,
        batch_size: int | None = None, progress: bool | None = None,
    ) -> list[list[Entity]]:  # fmt: skip
        """The labelled tokens or spans of each text, by transformers' aggregation strategies."""
        return token_classify(self._call(Task.TOKEN_CLASSIFY, truncate, batch_size, progress), texts, aggregation)

    def raw(
        self, texts: Any, *, truncate: bool | None = None, batch_size: int | None = None, progress: bool | None = None
    ) -> list[Raw]:
        """What the model's own head returns of each text or array, where no other task is of it.

        Such are question answering, next sentences, replaced tokens, speech recognition (CTC) and what a model returns
        besides its hidden rows.

        Returns:
            Of each text the float32 arrays that the model returns, by the model's own names: [tokens, ...] where there
            is a row a token, [...] where there is one of the text.

        Raises:
            TaskNotEnabledError: the head is one that another task is of, or returns what follows no text.
        """
        return raw(self._call(self.engine.require(Task.RAW), truncate, batch_size, progress), texts)

    def fill_mask(
        self, texts: str | Iterable[str], top: int = 5, *, truncate: bool | None = None,
        batch_size: int | None = None, progress: bool | None = None,
    ) -> list[list[list[Fill]]]:  # fmt: skip
        """For each text and each mask token in it, the likeliest tokens."""
        return fill_mask(self._call(Task.FILL_MASK, truncate, batch_size, progress), texts, top)

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

    def _not_yet(self, task: Task) -> NoReturn:
        self.engine.require(task)
        raise AssertionError(f"{task} can be run and has no method")

    def similarity(self, a: Array, b: Array) -> Array:
        """How near every row of `a` [n, d] is to every row of `b` [m, d]: [n, m]; or every text of many vectors.

        By the cosine, unless the folder names another (similarity_fn_name); distances are negated.
        """
        return similarity(a, b, self.program.facts.similarity)

    def similarity_pairwise(self, a: Array, b: Array) -> Array:
        """How near each row of `a` [n, d] is to the row of `b` [n, d] in its place: [n]. As `similarity` else."""
        return similarity_pairwise(a, b, self.program.facts.similarity)
