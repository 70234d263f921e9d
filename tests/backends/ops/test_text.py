"""tokenize and detokenize with a tokenizer that is trained on the spot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from pydantic import ValidationError
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from tensorgate.backends.ops.detokenize import KIND as DETOKENIZE
from tensorgate.backends.ops.tokenize import KIND as TOKENIZE
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
TEXTS = ["a cat sat on the mat", "the dog", "dogs and cats and mats and more of them", "", "naïve café"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer in the manner of BERT, and one that knows no token for padding."""
    folder = tmp_path_factory.mktemp("tokenizers")
    tokenizer: Any = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    bare = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    bare.save(str(folder / "bare.json"))
    (folder / "text.json").write_text("{}")
    return folder


def make(kind: OpKind, folder: Path, **options: Any) -> Op:
    given = {"op": "tokenize" if kind is TOKENIZE else "detokenize", "input": "x", "file": "tokenizer.json"} | options
    return kind.make(kind.options.model_validate(given, context=folder / "gateway.yaml"))


def texts(*values: bytes | str) -> dict[str, Any]:
    array = np.empty(len(values), object)
    array[:] = [value.encode() if isinstance(value, str) else value for value in values]
    return {"x": array}


def spec(datatype: str, *shape: int) -> dict[str, TensorSpec]:
    return {"x": TensorSpec("x", DTYPES[datatype], shape)}


def by_hand(folder: Path, *lines: Any, **options: Any) -> Any:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.encode(line, **options) for line in lines]


def test_padded_to_the_longest(folder: Path) -> None:
    op = make(TOKENIZE, folder, token_type_ids="types")
    got = op(texts(*TEXTS), np)
    encodings = by_hand(folder, *TEXTS)
    longest = max(len(each.ids) for each in encodings)
    assert got["input_ids"].shape == got["attention_mask"].shape == got["types"].shape == (5, longest)
    for row, encoding in enumerate(encodings):
        count = len(encoding.ids)
        assert got["input_ids"][row].tolist() == encoding.ids + [3] * (longest - count)
        assert got["attention_mask"][row].tolist() == [1] * count + [0] * (longest - count)
    assert not got["types"].any()
    after = op.specs(spec("BYTES", -1))
    assert {name: (each.datatype, each.shape) for name, each in after.items()} == {
        "input_ids": ("INT64", (-1, -1)),
        "attention_mask": ("INT64", (-1, -1)),
        "types": ("INT64", (-1, -1)),
    }


def test_cut_and_padded_to_a_length(folder: Path) -> None:
    options = {"padding": "max_length", "max_length": 8, "datatype": "INT32", "attention_mask": None}
    op = make(TOKENIZE, folder, **options)
    got = op({"x": texts(*TEXTS)["x"].reshape(5, 1)}, np)
    assert got.keys() == {"input_ids"}
    assert got["input_ids"].dtype == np.int32
    assert got["input_ids"].shape == (5, 8)
    assert op.specs(spec("BYTES", -1, 1))["input_ids"].shape == (-1, 8)
    (long,) = by_hand(folder, TEXTS[2])
    assert got["input_ids"][2].tolist() == [*long.ids[:7], 2]
    assert op(texts(), np)["input_ids"].shape[0] == 0


def test_multiples(folder: Path) -> None:
    op = make(TOKENIZE, folder, multiple_of=8, max_length=16)
    assert op(texts("the dog"), np)["input_ids"].shape == (1, 8)
    assert op(texts("the dog " * 9), np)["input_ids"].shape == (1, 16)
    with pytest.raises(ValidationError, match="max_length, 17, is no multiple of multiple_of, 8"):
        make(TOKENIZE, folder, multiple_of=8, max_length=17)


def test_pairs(folder: Path) -> None:
    op = make(TOKENIZE, folder, pair="y", token_type_ids="token_type_ids")
    got = op(texts("the dog") | {"y": texts("a cat")["x"]}, np)
    one = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("the dog", "a cat")
    assert got["input_ids"].tolist() == [one.ids]
    assert got["token_type_ids"].tolist() == [one.type_ids]
    assert 1 in one.type_ids
    with pytest.raises(InvalidArgument, match="x and y have different numbers of texts"):
        op(texts("the dog") | {"y": texts("a", "b")["x"]}, np)


def test_without_special_tokens(folder: Path) -> None:
    got = make(TOKENIZE, folder, special_tokens=False, pad_token="[UNK]")(texts("the dog", "the"), np)
    one, two = by_hand(folder, "the dog", "the", add_special_tokens=False)
    assert got["input_ids"].tolist() == [one.ids, two.ids + [0] * (len(one.ids) - len(two.ids))]


def test_what_callers_may_not_send(folder: Path) -> None:
    op = make(TOKENIZE, folder, truncation=False, max_length=4, max_text_bytes=20, padding="max_length")
    assert op(texts("the"), np)["input_ids"].shape == (1, 4)
    for value, words in [
        (b"\xff\xfe", "text 1 of 'x' is not UTF-8"),
        (b"a" * 21, "text 1 of 'x' has 21 bytes, and 20 is the most"),
        (b"the dog the dog", "a text has . tokens, and 4 is the most"),
    ]:
        with pytest.raises(InvalidArgument, match=words):
            op(texts("the", value), np)
    for array in (np.array([[b"a", b"b"]], object), np.array(b"a", object)):
        with pytest.raises(InvalidArgument, match=r"expected \[N\] or \[N, 1\]"):
            op({"x": array}, np)


def test_what_the_yaml_may_not_say(folder: Path) -> None:
    with pytest.raises(ValueError, match="'x' is INT64, expected BYTES"):
        make(TOKENIZE, folder).specs(spec("INT64", -1))
    with pytest.raises(ValueError, match=r"'x' has shape \[-1, 2\], expected \[N\] or \[N, 1\]"):
        make(TOKENIZE, folder).specs(spec("BYTES", -1, 2))
    with pytest.raises(ValueError, match="max_length 2 has no room beside 2 special tokens"):
        make(TOKENIZE, folder, max_length=2)
    with pytest.raises(ValueError, match=r"tokenizer\.json has no such token"):
        make(TOKENIZE, folder, pad_token="[nothing]")
    with pytest.raises(ValueError, match=r"bare\.json has no token for padding, say which with pad_token"):
        make(TOKENIZE, folder, file="bare.json")
    with pytest.raises(ValueError, match=r"is no tokenizer\.json"):
        make(TOKENIZE, folder, file="text.json")
    with pytest.raises(ValidationError, match="no such file"):
        make(TOKENIZE, folder, file="nowhere.json")


def test_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for kind in (TOKENIZE, DETOKENIZE):
        with pytest.raises(ImportError, match=r"pip install 'jinja2>=3.1' 'tokenizers>=0.22'"):
            make(kind, folder)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16])
def test_detokenize(folder: Path, dtype: Any) -> None:
    numbers = make(TOKENIZE, folder)(texts("the dog", "cats and mats"), np)["input_ids"].astype(dtype)
    got = make(DETOKENIZE, folder, output="text")({"x": numbers, "y": 1}, np)
    assert got["text"].tolist() == [b"the dog", b"cats and mats"]
    assert got["text"].dtype == object
    assert got["y"] == 1
    whole = make(DETOKENIZE, folder, skip_special_tokens=False)({"x": numbers}, np)["x"]
    assert whole[0].startswith(b"[CLS] the dog [SEP]")


def test_detokenize_refuses(folder: Path) -> None:
    op = make(DETOKENIZE, folder)
    assert op.specs(spec("INT32", -1, 7))["x"] == TensorSpec("x", DTYPES["BYTES"], (-1,))
    size = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    for number in (-1, size, 2**62):
        with pytest.raises(InvalidArgument, match=f"has the number {number}, and tokens are 0 to {size - 1}"):
            op({"x": np.array([[0, number]])}, np)
    with pytest.raises(InvalidArgument, match=r"expected \[N, L\]"):
        op({"x": np.array([0])}, np)
    with pytest.raises(ValueError, match=r"expected \[N, L\]"):
        op.specs(spec("INT32", -1))
    with pytest.raises(ValueError, match="expected integers"):
        op.specs(spec("FP32", -1, 7))
