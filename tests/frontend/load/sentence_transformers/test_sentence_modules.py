"""Sentence-transformers folders: what is read equals sentence-transformers; what is not known is refused."""

import json
import warnings

import pytest
import torch
from torch import nn

from headrace.errors import LoadError
from headrace.frontend.load.checkpoint import load
from headrace.frontend.load.sentence_transformers.modules.pooling import POOL_FLAGS, Pool, pool_kind, read_pools
from headrace.frontend.load.sentence_transformers.pipeline import read_pipeline
from headrace.frontend.load.sentence_transformers.sentence_modules import read_sentence_modules
from headrace.frontend.load.sentence_transformers.text_rules import read_text_rules
from headrace.frontend.trace import trace
from headrace.ir import OutputKind, PaddingRule, PoolKind, Task
from headrace.lowering.pipeline import analyse
from tests.tiny import build, outputs_of
from tests.words import bert_like

F32 = torch.float32
TEXTS = ["w5 w6 w7", "w9", "w20 w21 w22 w23 w24 w25 w26"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    build("bert", num_hidden_layers=1).save_pretrained(folder)
    bert_like().save_pretrained(folder)
    return folder


def sentence_transformer(bert, *after, **said):
    """A SentenceTransformer of the tiny BERT and the modules after it; its configuration says so much besides."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Transformer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SentenceTransformer(modules=[Transformer(str(bert), config_kwargs=said), *after], device="cpu")


def dense(out=16, into=32, **options):
    from sentence_transformers.models import Dense

    torch.manual_seed(out)
    return Dense(into, out, **options)


def pooling(*kinds):
    return pooling_of(32, *kinds)


def pooling_of(width, *kinds):
    from sentence_transformers.models import Pooling

    return Pooling(width, kinds)


def normalize(**names):
    from sentence_transformers.models import Normalize

    return Normalize(**names)


def drawn(module):
    """A module of sentence-transformers with weights off their neutral values."""
    torch.manual_seed(5)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.2, 1.0)
    return module


def layer_norm():
    from sentence_transformers.models import LayerNorm

    return drawn(LayerNorm(32))


def layers(first=1):
    from sentence_transformers.models import WeightedLayerPooling

    return drawn(WeightedLayerPooling(32, num_hidden_layers=1, layer_start=first))


def convolutions(**options):
    from sentence_transformers.models import CNN

    torch.manual_seed(6)
    return CNN(32, 8, **options)


def word_weights():
    from sentence_transformers.models import WordWeights

    return WordWeights([f"w{i}" for i in range(96)], {f"w{i}": 0.1 * i for i in range(5, 30)}, 0.7)


def dropout():
    from sentence_transformers.models import Dropout

    return Dropout(0.5)


def embeddings(folder, texts, kind=OutputKind.EMBEDDING):
    """Each text alone through the traced folder: what the graph says, before `normalize`."""
    loaded = load(folder, dtype=F32)
    made = trace(loaded)
    program = analyse(made.program, made.behaviour)
    ids = [torch.tensor([loaded.tokenizer(text)["input_ids"]]) for text in texts]
    return program, [outputs_of(program, row)[kind.value][0] for row in ids]


STACKS = {
    "dense, normalize (case S2)": lambda: [pooling("mean"), dense(), normalize()],
    "two kinds": lambda: [pooling("cls", "mean"), normalize()],
    "the other kinds": lambda: [pooling("max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")],
    "normalize within": lambda: [pooling("cls"), normalize(), dense(8, activation_function=nn.GELU())],
    "no bias, no activation": lambda: [pooling("mean"), dense(bias=False, activation_function=nn.Identity())],
    "residual": lambda: [pooling("mean"), dense(32, use_residual=True), dense(16, use_residual=True)],
    "layer norm, dropout": lambda: [pooling("mean"), layer_norm(), dropout(), normalize()],
    "dense and normalize over tokens": lambda: [
        dense(32, module_input_name="token_embeddings"),
        normalize(module_input_name="token_embeddings"),
        pooling("mean", "max"),
    ],
    "layers weighed": lambda: [layers(), pooling("mean")],
    "layers weighed from the embedding": lambda: [layers(0), pooling("cls")],
    "convolutions": lambda: [convolutions(), pooling_of(24, "mean", "max")],
    "words weighed": lambda: [word_weights(), pooling("mean", "mean_sqrt_len_tokens", "max", "cls")],
}
# What the transformer's configuration says besides, for one of these.
SAYING = {name: {"output_hidden_states": True} for name in STACKS if name.startswith("layers")}


@pytest.fixture(scope="module", params=STACKS)
def stacked(request, bert, tmp_path_factory):
    """Sentence-transformers' model, our program of the folder that it saved, and our vectors."""
    folder = tmp_path_factory.mktemp("stack")
    model = sentence_transformer(bert, *STACKS[request.param](), **SAYING.get(request.param, {}))
    model.save(str(folder))
    return model, *embeddings(folder, TEXTS)


def test_equals_sentence_transformers(stacked):
    model, program, got = stacked
    if program.facts.pooling.normalize:
        got = [nn.functional.normalize(vector, dim=-1) for vector in got]
    for text, vector in zip(TEXTS, got, strict=True):
        expected = torch.tensor(model.encode(text))
        assert vector.shape == expected.shape
        assert (vector - expected).abs().max() <= 1e-5
    assert program.facts.pooling.why == "modules.json"
    assert not program.facts.pooling.assumed
    assert program.decision.padding is PaddingRule.EXACT


def test_what_the_modules_declare(stacked):
    model, program, got = stacked
    assert program.signature.output(OutputKind.EMBEDDING).width == len(model.encode("w5"))
    assert program.evidence.declared_tasks == (Task.EMBED, Task.TOKEN_EMBED)
    assert program.evidence.declared_default is Task.EMBED
    last = type(model[-1]).__name__ == "Normalize"
    assert program.facts.pooling.normalize == last
    if last:
        assert got[0].norm() != pytest.approx(1, abs=1e-3), "the last Normalize is left to the caller"


ROWS_MADE = [name for name in STACKS if name.startswith(("dense and", "layers", "convolutions", "words"))]


@pytest.mark.parametrize("name", ROWS_MADE)
def test_a_tokens_vector_is_what_the_modules_make_of_it(bert, tmp_path, name):
    model = sentence_transformer(bert, *STACKS[name](), **SAYING.get(name, {}))
    model.save(str(tmp_path))
    _, (got, *_) = embeddings(tmp_path, TEXTS[:1], OutputKind.TOKEN_EMBEDDING)
    expected = model.encode(TEXTS[0], output_value="token_embeddings")
    assert (got - torch.tensor(expected)).abs().max() <= 1e-5


def test_without_pooling_there_is_a_vector_a_token(bert, tmp_path):
    model = sentence_transformer(bert, normalize())
    model.save(str(tmp_path))
    program, _ = embeddings(tmp_path, TEXTS[:1])
    assert program.evidence.declared_default is Task.TOKEN_EMBED
    assert program.signature.output(OutputKind.TOKEN_EMBEDDING).width == 32


CONFIGS = [
    # Case S1: the three forms.
    ({"embedding_dimension": 32, "pooling_mode": "mean"}, (PoolKind.MEAN,)),
    (
        {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        (PoolKind.CLS,),
    ),
    ({"embedding_dimension": 32, "pooling_mode": ["cls", "mean"]}, (PoolKind.CLS, PoolKind.MEAN)),
    # Every kind in either form.
    ({"pooling_mode": "lasttoken"}, (PoolKind.LAST,)),
    (
        {"pooling_mode": ["weightedmean", "max", "mean_sqrt_len_tokens"]},
        ("weightedmean", "max", "mean_sqrt_len_tokens"),
    ),
    (dict.fromkeys(reversed(POOL_FLAGS), True), ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "last")),
]


@pytest.mark.parametrize(("config", "kinds"), CONFIGS)
def test_pooling_configs(tmp_path, config, kinds):
    assert read_pools(config, tmp_path) == kinds


@pytest.mark.parametrize(("config", "kinds"), CONFIGS)
def test_pooling_configs_mean_what_sentence_transformers_says(tmp_path, config, kinds):
    from sentence_transformers.models import Pooling

    (tmp_path / "config.json").write_text(json.dumps({"embedding_dimension": 32} | config))
    theirs = Pooling.load(str(tmp_path)).pooling_mode
    names = (theirs,) if isinstance(theirs, str) else theirs
    assert read_pools(config, tmp_path) == tuple(pool_kind(name) for name in names)


def test_a_tuple_is_twice_as_wide():
    pool = Pool((PoolKind.CLS, PoolKind.MEAN))
    rows = torch.arange(12.0).reshape(1, 3, 4)
    assert torch.equal(pool(rows, torch.ones(1, 3)), torch.cat([rows[:, 0], rows.mean(1)], -1))


def test_a_pooling_that_names_nothing(tmp_path):
    with pytest.raises(LoadError, match="the Pooling config names no kind"):
        read_pools({"word_embedding_dimension": 32, "pooling_mode_cls_token": False}, tmp_path)


@pytest.mark.parametrize("name", ["median", "", "CLS"])
def test_an_unknown_pooling(name):
    with pytest.raises(LoadError) as refused:
        pool_kind(name)
    assert str(refused.value) == (
        f"There is no pooling {name!r}. Choose from cls, last, lasttoken, max, mean, mean_sqrt_len_tokens, "
        "weightedmean."
    )


def test_either_name_of_the_last_token():
    assert pool_kind("lasttoken") is pool_kind("last") is PoolKind.LAST


ST = "sentence_transformers.models."


@pytest.fixture
def written(bert, tmp_path):
    """`written(types, **configs)` writes a folder by hand: its modules.json and the config of each module."""
    import shutil

    folder = shutil.copytree(bert, tmp_path / "model")

    def write(types, **configs):
        listed = [{"idx": i, "path": f"{i}" if i else "", "type": kind} for i, kind in enumerate(types)]
        (folder / "modules.json").write_text(json.dumps(listed))
        for index, config in configs.items():
            where = folder / index.removeprefix("m")
            where.mkdir(exist_ok=True)
            (where / "config.json").write_text(json.dumps(config))
        return folder

    return write


def refused(folder):
    with pytest.raises(LoadError) as error:
        load(folder, dtype=F32)
    return str(error.value)


def test_an_unknown_module_is_refused(written):
    kind = "sentence_transformers.Unheard"
    text = refused(written([ST + "Transformer", ST + "Pooling", kind], m1={"pooling_mode": "mean"}))
    assert f"modules.json names {kind}; known are sentence-transformers' Transformer, MLMTransformer, " in text
    assert text.endswith("MultiVectorMask.")


def test_an_lstm_behind_a_transformer_is_refused(bert, tmp_path):
    """Sentence-transformers' own has no lengths to run by there, and fails at the first text."""
    from sentence_transformers.models import LSTM

    model = sentence_transformer(bert, LSTM(32, 8), pooling_of(16, "mean"))
    with pytest.raises(KeyError, match="sentence_lengths"):
        model.encode("w5")
    model.save(str(tmp_path))
    assert "a LSTM over sentence_lengths, which no module before it makes; input_ids, token_embeddings is there" in (
        refused(tmp_path)
    )


def test_somebodys_class_of_a_known_name_is_refused(written):
    text = refused(written(["custom_st.Transformer", ST + "Pooling"], m1={"pooling_mode": "mean"}))
    assert "modules.json names custom_st.Transformer; known are" in text


@pytest.mark.parametrize(
    "types",
    [
        [ST + "Pooling", ST + "Transformer"],
        [ST + "Transformer", ST + "Pooling", ST + "Pooling"],
        [ST + "StaticEmbedding", ST + "Pooling"],
        [ST + "Transformer", ST + "StaticEmbedding"],
    ],
)
def test_modules_in_a_place_where_they_make_no_sense(written, types):
    text = refused(written(types, m1={"pooling_mode": "mean"}, m2={"pooling_mode": "mean"}))
    assert "then others, one Pooling among them behind a Transformer." in text


@pytest.mark.parametrize("content", ["", "{}", "[]", "[{}]", '[{"type": 3}]', "[1]"])
def test_a_corrupt_modules_json(written, content):
    folder = written([ST + "Transformer"])
    (folder / "modules.json").write_text(content)
    assert "modules.json" in refused(folder)


def test_a_missing_pooling_config(written):
    assert "config.json cannot be read" in refused(written([ST + "Transformer", ST + "Pooling"]))


DENSE = {"in_features": 32, "out_features": 4, "bias": True, "activation_function": "torch.nn.modules.linear.Identity"}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (DENSE | {"activation_function": "os.system"}, "the activation os.system is not one of torch.nn's."),
        (
            DENSE | {"activation_function": "torch.nn.NoSuch"},
            "the activation torch.nn.NoSuch is not one of torch.nn's.",
        ),
        (DENSE, "holds no weights (model.safetensors or pytorch_model.bin)."),
    ],
)
def test_a_dense_that_is_not_served(written, config, says):
    types = [ST + "Transformer", ST + "Pooling", ST + "Dense"]
    assert says in refused(written(types, m1={"pooling_mode": "mean"}, m2=config))


def test_a_dense_over_what_nothing_makes(bert, tmp_path):
    sentence_transformer(bert, pooling("mean"), dense(module_input_name="mean")).save(str(tmp_path))
    assert "2_Dense/config.json: a Dense over mean, which no module before it makes; input_ids, " in refused(tmp_path)


def test_a_dense_of_another_shape(written):
    from safetensors.torch import save_file

    types = [ST + "Transformer", ST + "Pooling", ST + "Dense"]
    folder = written(types, m1={"pooling_mode": "mean"}, m2=DENSE)
    save_file({"linear.weight": torch.zeros(5, 32), "linear.bias": torch.zeros(5)}, folder / "2" / "model.safetensors")
    assert "cannot be read: RuntimeError" in refused(folder)


def test_a_dense_in_the_older_form(written):
    types = [ST + "Transformer", ST + "Pooling", ST + "Dense"]
    folder = written(types, m1={"pooling_mode": "mean"}, m2=DENSE)
    weights = {"linear.weight": torch.randn(4, 32), "linear.bias": torch.randn(4)}
    torch.save(weights, folder / "2" / "pytorch_model.bin")
    made = read_sentence_modules(read_pipeline(folder)).chain.steps[1]
    rows = torch.randn(3, 32)
    assert torch.equal(made.module(rows), nn.functional.linear(rows, *weights.values()))


@pytest.mark.parametrize("options", [{"kernel_sizes": [2]}, {"kernel_sizes": [1, 3], "stride_sizes": [1, 2]}])
def test_convolutions_that_change_the_number_of_rows(bert, tmp_path, options):
    sentence_transformer(bert, convolutions(**options), pooling_of(8, "mean")).save(str(tmp_path))
    assert "change the number of rows, which is not served; odd kernels with strides of 1 are." in refused(tmp_path)


def test_a_mean_by_place_of_weighed_words_is_refused(bert, tmp_path):
    sentence_transformer(bert, word_weights(), pooling("weightedmean")).save(str(tmp_path))
    assert "pools by weightedmean what WordWeights weighs, which is not served." in refused(tmp_path)


def test_a_transformer_in_its_own_folder(bert, written, tmp_path):
    """The oldest layout: nothing but modules.json lies at the top."""
    folder = written([ST + "Transformer", ST + "Pooling"], m1={"pooling_mode": "cls"})
    own = folder / "0_Transformer"
    own.mkdir()
    for file in folder.glob("*"):
        if file.is_file() and file.name != "modules.json":
            file.rename(own / file.name)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))
    (own / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": True}))
    loaded = load(folder, dtype=F32)
    assert loaded.sentence.pools == (PoolKind.CLS,)
    assert (loaded.text.max_length, loaded.text.lower_case) == (12, True)
    assert loaded.tokenizer("w5")["input_ids"] == [0, 5, 2]


def test_what_the_folder_says_of_text(written):
    folder = written([ST + "Transformer", ST + "Pooling"], m1={"pooling_mode": "mean", "include_prompt": False})
    prompts = {"query": "Find: ", "document": ""}
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts, "default_prompt_name": "query"})
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}))
    text = read_text_rules(read_pipeline(folder))
    assert text.prompts == (("document", ""), ("query", "Find: "))
    assert text.default_prompt == "query"
    assert (text.max_length, text.truncates) == (9, True)
    assert text.why == "sentence_bert_config.json's max_seq_length"
    assert not text.pools_prompt


def test_a_folder_without_modules_is_none(bert):
    assert read_pipeline(bert) is None


@pytest.mark.parametrize("count", [1, 3])
def test_a_cross_encoder_keeps_its_head_and_activation(tmp_path, count):
    """Sentence-transformers 6 writes a modules.json for it, of a transformer alone, and the activation beside it."""
    from sentence_transformers import CrossEncoder

    (tmp_path / "bert").mkdir()
    build("bert", "AutoModelForSequenceClassification", num_labels=count).save_pretrained(tmp_path / "bert")
    bert_like().save_pretrained(tmp_path / "bert")
    CrossEncoder(str(tmp_path / "bert"), activation_fn=nn.Sigmoid(), device="cpu").save(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "modules.json").is_file()
    loaded = load(tmp_path / "saved", dtype=F32)
    assert loaded.sentence is None
    assert loaded.missing == ()
    program = trace(loaded).program
    assert program.signature.head == "sequence"
    assert program.facts.labels.activation == "sigmoid"
    assert program.facts.labels.why == "the config names torch.nn.modules.activation.Sigmoid"
    assert len(program.facts.labels.names) == count


def test_modules_after_a_transformer_with_a_head_are_refused(written):
    folder = written([ST + "Transformer", ST + "Pooling"], m1={"pooling_mode": "mean"})
    (folder / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "sequence-classification"}))
    assert "puts Pooling after a transformer for sequence-classification (transformer_task)" in refused(folder)
