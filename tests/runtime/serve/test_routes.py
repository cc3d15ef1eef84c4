"""Each route answers as the list API does, in the form that its clients read."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from headrace import TaskNotEnabledError

TEXTS = [
    "A kitten naps in the sun.",
    "The cat sleeps.",
    "Interest rates rose in " + "very " * 60 + "many countries.",
    "",
]
WORDS = ["w5 w6 w7", "w8", "w9 " * 20]
CHAT = {"role": "user", "content": "w5"}
PROMPTS = [[5, 6, 7, 8], [20, 30]]


def near(got: Any, wanted: Any) -> None:
    """Equal within what other texts in a batch change of a float32 answer (contract D1)."""
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), atol=1e-5)


@pytest.fixture(scope="session")
def openai(running: Any) -> Any:
    client = pytest.importorskip("openai")
    made = client.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    yield made
    made.close()


def test_openai_embeddings(running: Any, models: Any, openai: Any) -> None:
    wanted = models["minilm"].embed(TEXTS)
    found = openai.embeddings.create(model="minilm", input=TEXTS)  # the client asks for base64 and decodes it
    near([one.embedding for one in found.data], wanted)
    assert [one.index for one in found.data] == [0, 1, 2, 3]
    assert found.usage.prompt_tokens == sum(len(one) for one in models["minilm"].tokenizer(TEXTS)["input_ids"])
    floats = openai.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="float", dimensions=7)
    near(floats.data[0].embedding, models["minilm"].embed(TEXTS[0], dimensions=7)[0])


def test_embeddings_of_token_ids(running: Any, models: Any, openai: Any) -> None:
    ids = models["minilm"].tokenizer(TEXTS, truncation=False)["input_ids"]
    wanted = models["minilm"].embed(TEXTS)
    near([one.embedding for one in openai.embeddings.create(model="minilm", input=ids).data], wanted)
    near(openai.embeddings.create(model="minilm", input=ids[0]).data[0].embedding, wanted[0])
    status, words = running.refused("/v1/embeddings", model="minilm", input=[[1, 10**6]])
    assert status == 400
    assert "token_ids[0] holds 1000000" in words


def test_base64_holds_little_endian_float32(running: Any, models: Any) -> None:
    found = running.post("/v1/embeddings", model="minilm", input=TEXTS[:2], encoding_format="base64")
    rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in found["data"]]
    near(rows, models["minilm"].embed(TEXTS[:2]))


def test_openai_models(openai: Any, models: Any) -> None:
    assert [one.id for one in openai.models.list().data] == list(models)
    assert openai.models.retrieve("writer").id == "writer"


def test_openai_completions(openai: Any, models: Any) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, "n": 2}
    wanted = models["writer"].generate(PROMPTS, max_new_tokens=6, **options)
    found = openai.completions.create(model="writer", prompt=PROMPTS, max_tokens=6, **options)
    assert [one.text for one in found.choices] == [one.text for one in wanted]
    assert [one.index for one in found.choices] == [0, 1, 2, 3]
    assert [one.finish_reason for one in found.choices] == [one.finish_reason for one in wanted]
    assert found.usage.prompt_tokens == 6
    assert found.usage.completion_tokens == sum(len(one.token_ids) for one in wanted)


def test_openai_completions_in_parts(openai: Any, models: Any) -> None:
    wanted = models["writer"].generate(PROMPTS, max_new_tokens=6, logprobs=2)
    texts, known = ["", ""], [list[float](), list[float]()]
    stream = openai.completions.create(
        model="writer", prompt=PROMPTS, max_tokens=6, stream=True, logprobs=2, stream_options={"include_usage": True}
    )
    *parts, last = list(stream)
    for part in parts:
        choice = part.choices[0]
        texts[choice.index] += choice.text
        known[choice.index] += choice.logprobs.token_logprobs
    assert texts == [one.text for one in wanted]
    assert known == [[token.logprob for token in one.logprobs] for one in wanted]
    assert last.usage.total_tokens == 6 + 12
    assert len(parts) > 2


def test_openai_chats(openai: Any, models: Any) -> None:
    messages = [{"role": "system", "content": "w5 w6"}, {"role": "user", "content": [{"type": "text", "text": "w7"}]}]
    plain = [{"role": "system", "content": "w5 w6"}, {"role": "user", "content": "w7"}]
    wanted = models["writer"].generate(plain, max_new_tokens=5, logprobs=2)[0]
    asked: Any = {"model": "writer", "messages": messages, "max_completion_tokens": 5}
    found = openai.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    choice = found.choices[0]
    assert choice.message.content == wanted.text
    assert choice.finish_reason == "length"
    assert [one.logprob for one in choice.logprobs.content] == [one.logprob for one in wanted.logprobs]
    assert [len(one.top_logprobs) for one in choice.logprobs.content] == [2] * 5
    parts = list(openai.chat.completions.create(**asked, stream=True))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == wanted.text
    assert parts[-1].choices[0].finish_reason == "length"


def test_answers_that_keep_to_choices_and_stop_strings(openai: Any, models: Any) -> None:
    chosen = openai.completions.create(
        model="writer", prompt="w5", extra_body={"guided_choice": ["w7 w8", "w9"]}, max_tokens=8
    ).choices[0]
    assert chosen.text in ("w7 w8", "w9")
    assert chosen.finish_reason == "stop"
    whole = models["writer"].generate("w5 w6 w7", max_new_tokens=4)[0].text
    stop = whole.split()[2]
    found = openai.completions.create(model="writer", prompt="w5 w6 w7", max_tokens=4, stop=stop).choices[0]
    assert found.text == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/completions", {"prompt": "w5"}), ("/v1/chat/completions", {"messages": [CHAT]})],
    ids=["completion", "chat"],
)
def test_answers_that_keep_to_a_schema(running: Any, path: str, asked: dict[str, Any]) -> None:
    """By OpenAI's field and by vLLM's the same: read, or refused where the vocabulary cannot write such a text."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    by_format = {"response_format": {"type": "json_schema", "json_schema": {"name": "none", "schema": schema}}}
    answers = [
        running.client.post(path, json={"model": "writer", "max_tokens": 4} | asked | given).json()
        for given in (by_format, {"guided_json": schema}, {"response_format": {"type": "text"}})
    ]
    said = [one["error"]["message"] if "error" in one else one["choices"] for one in answers]
    assert said[0] == said[1] != said[2]


def test_one_model_embeds_and_generates_and_what_both_read_lies_in_memory_once(running: Any, models: Any) -> None:
    model = models["writer"]
    near(running.post("/v1/embeddings", model="writer", input=WORDS)["data"][0]["embedding"], model.embed(WORDS)[0])
    running.post("/v1/completions", model="writer", prompt="w5", max_tokens=1)
    first, second = (lane.program.exported.state_dict for lane in model.engine.lanes.values())
    both = [name for name in first if name in second and first[name].dim() > 1]
    assert both
    assert all(first[name].data_ptr() == second[name].data_ptr() for name in both)


def test_one_program_embeds_and_chats_in_one_loop(running: Any, models: Any) -> None:
    """Of a model that was compiled for both: one executable, and the answers of the one that has two."""
    model, alone = models["both"], models["writer"]
    near(running.post("/v1/embeddings", model="both", input=WORDS)["data"][0]["embedding"], alone.embed(WORDS)[0])
    said = {"messages": [{"role": "user", "content": "w5 w6"}], "max_tokens": 4}
    found, wanted = (running.post("/v1/chat/completions", model=name, **said) for name in ("both", "writer"))
    assert found["choices"][0]["message"] == wanted["choices"][0]["message"]
    assert len(model.engine.lanes) == len(model.engine._loops) == 1


@pytest.mark.parametrize("normalize", [True, False])
def test_tei_embed(running: Any, models: Any, normalize: bool) -> None:
    wanted = models["minilm"].embed(TEXTS, normalize=normalize)
    near(running.post("/embed", model="minilm", inputs=TEXTS, normalize=normalize), wanted)
    near(running.post("/embed", model="minilm", inputs=TEXTS[1], normalize=normalize), wanted[1:2])


def test_tei_embed_all_and_sparse(running: Any, models: Any) -> None:
    found = running.post("/embed_all", model="minilm", inputs=TEXTS)
    for got, wanted in zip(found, models["minilm"].token_embed(TEXTS), strict=True):
        near(got, wanted)
    sparse = running.post("/embed_sparse", inputs=TEXTS[:2])  # one model alone makes such vectors
    for got, vector in zip(sparse, models["sparse"].sparse_embed(TEXTS[:2]), strict=True):
        assert [one["index"] for one in got] == vector.indices.tolist()
        near([one["value"] for one in got], vector.weights)


def test_tei_predict(running: Any, models: Any) -> None:
    model, pair = models["labeller"], ("w5 w6", "w7")
    text, both = model.classify("w5 w6")[0], model.classify([pair])[0]
    for inputs, wanted in (("w5 w6", text), (list(pair), both), (["w5 w6"], text)):
        found = running.post("/predict", model="labeller", inputs=inputs)
        near([one["score"] for one in found], sorted(wanted.scores.values(), reverse=True))
        assert found[0]["label"] == wanted.label
    many = running.post("/predict", model="labeller", inputs=[["w5 w6"], list(pair), ["w5 w6"]], raw_scores=True)
    raw = model.classify("w5 w6", raw=True)[0]
    near([one["score"] for one in many[2]], sorted(raw.scores.values(), reverse=True))
    assert many[0][0]["label"] == text.label
    assert many[1][0]["label"] == both.label


def test_tei_rerank_and_rerank_of_cohere(running: Any, models: Any) -> None:
    wanted = models["ranker"].rank("w5 w6", WORDS)
    found = running.post("/rerank", model="ranker", query="w5 w6", texts=WORDS, return_text=True)
    assert [one["index"] for one in found] == [one.index for one in wanted]
    near([one["score"] for one in found], [one.score for one in wanted])
    assert found[0]["text"] == WORDS[found[0]["index"]]
    for path in ("/v1/rerank", "/v2/rerank"):
        documents = [WORDS[0], {"text": WORDS[1]}, WORDS[2]]
        answer = running.post(path, model="ranker", query="w5 w6", documents=documents, top_n=2, return_documents=True)
        assert [one["index"] for one in answer["results"]] == [one.index for one in wanted[:2]]
        near([one["relevance_score"] for one in answer["results"]], [one.score for one in wanted[:2]])
        assert answer["results"][0]["document"] == {"text": WORDS[wanted[0].index]}


def test_a_model_that_embeds_ranks_by_similarity(running: Any, models: Any) -> None:
    wanted = models["minilm"].rank(TEXTS[0], TEXTS[1:3])
    found = running.post("/rerank", model="minilm", query=TEXTS[0], texts=TEXTS[1:3])
    assert [one["index"] for one in found] == [one.index for one in wanted]
    near([one["score"] for one in found], [one.score for one in wanted])


def test_scores_and_labels(running: Any, models: Any) -> None:
    pairs = [("w5 w6", word) for word in WORDS]
    found = running.post("/v1/score", text_1="w5 w6", text_2=WORDS, model="ranker")
    near([one["score"] for one in found["data"]], models["ranker"].score(pairs))
    labels = running.post("/v1/classify", input=WORDS, model="labeller")["data"]
    for got, wanted in zip(labels, models["labeller"].classify(WORDS), strict=True):
        assert (got["label"], got["num_classes"]) == (wanted.label, 3)
        near(got["probs"], list(wanted.scores.values()))


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_entities_with_offsets(running: Any, models: Any, aggregation: str) -> None:
    texts = ["Call Sarah Connor in Springfield — today.", "Nothing here.", "Ask Zoë Müller."]
    wanted = models["tagger"].token_classify(texts, aggregation=aggregation)
    found = running.post("/v1/entities", model="tagger", input=texts, aggregation=aggregation)["data"]
    for got, entities in zip(found, wanted, strict=True):
        told = [(one["label"], one["start"], one["end"], one["word"]) for one in got["entities"]]
        assert told == [(one.label, one.start, one.end, one.word) for one in entities]
        near([one["score"] for one in got["entities"]], [one.score for one in entities])


def test_tei_tokenize(running: Any, models: Any) -> None:
    text = "Kittens nap — " + "sun " * 200  # more than the file of the tokenizer truncates to
    [tokens] = running.post("/tokenize", model="minilm", inputs=text)
    assert [one["id"] for one in tokens] == models["minilm"].tokenizer(text, truncation=False)["input_ids"]
    assert all(text[one["start"] : one["stop"]] == one["text"] for one in tokens if not one["special"])
    [bare] = running.post("/tokenize", model="minilm", inputs=text, add_special_tokens=False)
    assert bare == tokens[1:-1]


def test_what_is_served(running: Any, models: Any) -> None:
    info = running.client.get("/info").json()
    assert info["model_id"] == "minilm"
    assert info["max_input_length"] == 256
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["models"] == {name: list(model.tasks) for name, model in models.items()}
    assert running.client.get("/health").json() == {"status": "ok"}


def test_openapi_lists_every_route(running: Any) -> None:
    from headrace.runtime.serve.app import ROUTES

    found = running.client.get("/openapi.json").json()
    assert set(found["paths"]) == {route.path.replace(":path", "") for route in ROUTES}
    body = found["paths"]["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = found["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert set(schema["properties"]) >= {"input", "model", "dimensions", "encoding_format"}
    assert "$defs" not in json.dumps(found)
    assert all(route.path in running.client.get("/docs").text for route in ROUTES)


def test_metrics_count_what_was_done(running: Any) -> None:
    running.post("/embed", model="minilm", inputs=TEXTS)
    text = running.client.get("/metrics").text
    for name in ("queue_requests", "batch_texts_count", "batch_fill_sum", "tokens_read_total"):
        assert f'headrace_{name}{{model="minilm",task="embed"}}' in text, name
    assert 'headrace_requests_total{route="/embed",status="200"}' in text
    assert "headrace_cache_bytes" in text


@pytest.mark.parametrize(
    ("path", "task", "body"),
    [
        ("/v1/embeddings", "embed", {"input": "x"}),
        ("/embed", "embed", {"inputs": "x"}),
        ("/embed_all", "token_embed", {"inputs": "x"}),
        ("/embed_sparse", "sparse_embed", {"inputs": "x"}),
        ("/predict", "classify", {"inputs": "x"}),
        ("/rerank", "score", {"query": "x", "texts": ["y"]}),
        ("/v1/rerank", "score", {"query": "x", "documents": ["y"]}),
        ("/v1/score", "score", {"text_1": "x", "text_2": "y"}),
        ("/v1/classify", "classify", {"input": "x"}),
        ("/v1/completions", "generate", {"prompt": "x"}),
        ("/v1/chat/completions", "generate", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_a_task_that_is_not_enabled_is_refused_in_the_words_of_python(
    running: Any, models: Any, path: str, task: str, body: dict[str, Any]
) -> None:
    with pytest.raises(TaskNotEnabledError) as wanted:
        models["tagger"].answer(task, ["x"])
    status, words = running.refused(path, model="tagger", **body)
    assert 400 <= status < 500
    assert words == str(wanted.value)


def test_entities_of_a_model_without_labels(running: Any, models: Any) -> None:
    with pytest.raises(TaskNotEnabledError) as wanted:
        models["minilm"].token_classify("x")
    assert running.refused("/v1/entities", model="minilm", input="x") == (400, str(wanted.value))


def test_a_model_that_could_be_several_must_be_named(running: Any) -> None:
    status, words = running.refused("/embed", inputs="x")
    assert (status, words) == (422, 'minilm, writer, both could answer embed. Name the model: "model": "...".')
    assert running.refused("/v1/embeddings", input="x", model="none")[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/embeddings", {"model": "minilm", "input": []}, 400, "nothing to answer"),
        ("/v1/embeddings", {"model": "minilm", "input": "x", "dimensions": 385}, 400, "choose from 1 to 384"),
        ("/v1/embeddings", {"model": "minilm", "input": "x", "colour": 1}, 400, "colour: Extra inputs"),
        ("/v1/embeddings", {"model": "minilm", "input": "word " * 300}, 400, "at most 256 are accepted"),
        ("/embed", {"model": "minilm", "inputs": "word " * 300}, 413, "at most 256 are accepted"),
        ("/embed", {"model": "minilm", "inputs": "x", "prompt_name": "q"}, 422, "prompt_name is 'q'"),
        ("/embed", {"model": "minilm", "inputs": "x", "truncate": True, "truncation_direction": "left"}, 422, "right"),
        ("/v1/completions", {"model": "writer", "prompt": "w5", "echo": True}, 400, "echo"),
        ("/v1/completions", {"model": "writer", "prompt": "w5", "n": 2, "temperature": 0.0}, 400, "n is 2"),
        ("/v1/completions", {"model": "writer", "prompt": "w5 " * 80}, 400, "at most 64"),
        ("/v1/completions", {"model": "writer", "prompt": "w5", "stream": True, "n": 2}, 400, "n is 2"),
        (
            "/v1/completions",
            {"model": "writer", "prompt": ["w5"] * 99, "n": 99, "temperature": 1.0},
            413,
            "9801 answers",
        ),
        ("/v1/chat/completions", {"model": "writer", "messages": []}, 400, "messages"),
        (
            "/v1/chat/completions",
            {"model": "writer", "messages": [CHAT], "chat_template_kwargs": {"chat_template": "{{ 7 * 7 }}"}},
            400,
            "chat_template, which the server sets",
        ),
        ("/v1/chat/completions", {"model": "writer", "messages": [CHAT], "tools": [{}]}, 400, "tools are not served"),
        ("/v1/score", {"model": "ranker", "text_1": ["a", "b"], "text_2": ["c"]}, 400, "as many of each"),
        ("/v1/score", {"model": "ranker", "text_1": [], "text_2": []}, 400, "nothing to answer"),
        ("/v1/score", {"model": "ranker", "text_1": "a", "text_2": []}, 400, "nothing to answer"),
        ("/v1/classify", {"model": "labeller", "input": []}, 400, "nothing to answer"),
        ("/v1/entities", {"model": "tagger", "input": []}, 400, "nothing to answer"),
        ("/embed_sparse", {"model": "sparse", "inputs": []}, 422, "nothing to answer"),
        (
            "/v1/completions",
            {"model": "writer", "prompt": "w5", "guided_json": {}, "response_format": {"type": "json_object"}},
            400,
            "Leave one of them out",
        ),
    ],
)
def test_refusals(running: Any, path: str, body: dict[str, Any], status: int, words: str) -> None:
    got, told = running.refused(path, **body)
    assert got == status, told
    assert words in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("path", "given"),
    [("/embed", {"inputs": "x"}), ("/v1/embeddings", {"input": "x"}), ("/v1/classify", {"input": "x"})],
)
def test_no_prompt_is_advised_that_a_client_cannot_send(running: Any, path: str, given: dict[str, Any]) -> None:
    model = "labeller" if path == "/v1/classify" else "minilm"
    _, words = running.refused(path, model=model, prompt_name="q", **given)
    assert words == "prompt_name is 'q'; the model's prompts are none."


def test_a_long_text_is_cut_where_that_is_asked_for(running: Any, models: Any) -> None:
    text = "word " * 300
    wanted = models["minilm"].embed(text, truncate=True)
    near(running.post("/embed", model="minilm", inputs=text, truncate=True, truncation_direction="Right"), wanted)
