"""Start vectors against the token tables."""

from __future__ import annotations

import pytest
import torch

from tests.train.making import config, model
from ti_fix.embedding import SDXL, Embedding, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.formats.write import write
from ti_fix.tokenizer import encode
from ti_fix.train.initial import slerp, start_vectors, statistics, weighted_words

BOS, EOS = 49406, 49407


@pytest.fixture(scope="module")
def vocabulary():
    return model().vocabulary()


@pytest.fixture(scope="module")
def about(vocabulary):
    return statistics(vocabulary)


@pytest.fixture
def start(vocabulary, about):
    return lambda **settings: start_vectors(config(**settings), vocabulary, SDXL, about)


def test_statistics_are_those_of_the_words(vocabulary, about):
    for key, table in vocabulary.tables.items():
        rows = table[512:49406].double()
        assert about[key].length == pytest.approx(float(rows.norm(dim=1).mean()), rel=1e-5)
        assert about[key].rms == pytest.approx(float(rows.square().mean().sqrt()), rel=1e-5)
        torch.testing.assert_close(about[key].mean, rows.mean(0).float())
        torch.testing.assert_close(about[key].deviation, rows.std(0, correction=0).float())


def test_words_give_one_vector_a_token_and_never_start_or_end(vocabulary, start):
    ids = encode("a lighthouse keeper")
    assert len(ids) > 2 and not {BOS, EOS} & set(ids)
    found = start(start_text="a lighthouse keeper", vectors=len(ids))
    for key, table in vocabulary.tables.items():
        assert torch.equal(found[key], table[ids])


def test_words_repeat_to_fill_and_are_cut_to_fit(vocabulary, start):
    ids = encode("red tower")
    table = vocabulary.tables["clip_g"]
    assert torch.equal(start(start_text="red tower", vectors=5)["clip_g"], table[[*ids, *ids, ids[0]]])
    assert torch.equal(start(start_text="red tower", vectors=1)["clip_g"], table[ids[:1]])


def test_mean_is_of_the_words_own_tokens_at_their_length(vocabulary, start):
    found = start(start="mean", start_text="bird:1 blue:.5", vectors=3)
    for key, table in vocabulary.tables.items():
        bird, blue = table[encode("bird")].mean(0), table[encode("blue")].mean(0)
        mean = (bird + 0.5 * blue) / 1.5
        length = (bird.norm() + 0.5 * blue.norm()) / 1.5
        expected = mean * length / mean.norm()
        torch.testing.assert_close(found[key], expected.repeat(3, 1))
        bos = table[BOS]
        assert abs(float(torch.nn.functional.cosine_similarity(found[key][0], bos, dim=0))) < 0.5


def test_weights_are_read_with_and_without_commas():
    assert weighted_words("bird:1 blue:.5 metal") == [("bird", 1.0), ("blue", 0.5), ("metal", 1.0)]
    assert weighted_words("blue bird:2, metal") == [("blue bird", 2.0), ("metal", 1.0)]


def test_slerp_goes_along_the_arc():
    one, other = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 4.0])
    assert slerp(one, other, 0.0).tolist() == pytest.approx([2, 0], abs=1e-6)
    assert slerp(one, other, 1.0).tolist() == pytest.approx([0, 4], abs=1e-6)
    half = slerp(one, other, 0.5)
    assert half.tolist() == pytest.approx([3 / 2**0.5] * 2)
    assert slerp(one, one, 0.3).tolist() == pytest.approx([2, 0])


def test_slerp_takes_two_words_only(start):
    with pytest.raises(WrongUse, match="two words"):
        start(start="slerp", start_text="cat dog bird")


def test_random_vectors_look_like_words(about, start):
    found = start(start="random", vectors=75)
    for key, block in found.items():
        lengths = block.norm(dim=1)
        torch.testing.assert_close(lengths, torch.full((75,), about[key].length))
    assert not torch.equal(found["clip_l"][0], found["clip_l"][1])
    assert torch.equal(found["clip_l"], start(start="random", vectors=75)["clip_l"])
    assert not torch.equal(found["clip_l"], start(start="random", vectors=75, seed=1)["clip_l"])


def test_start_noise_tells_equal_vectors_apart(about, start):
    found = start(start="mean", start_text="bird", vectors=4, start_noise=0.1)["clip_l"]
    away = found - start(start="mean", start_text="bird", vectors=4)["clip_l"]
    assert float(away.norm(dim=1).mean()) == pytest.approx(0.1 * about["clip_l"].length, rel=0.3)
    assert len({tuple(row.tolist()) for row in found}) == 4


def test_a_file_is_taken_as_it_is(tmp_path):
    vectors = {"clip_l": torch.randn(2, 768), "clip_g": torch.randn(2, 1280)}
    path = write(Embedding(name="before", vectors=vectors), tmp_path)
    tables = {"clip_l": torch.randn(600, 768), "clip_g": torch.randn(600, 1280)}
    wide = Vocabulary(tables=tables, tokenize=encode)
    found = start_vectors(config(start="file", start_text=str(path), vectors=2), wide, SDXL, statistics(wide))
    assert all(torch.equal(found[key], vectors[key]) for key in vectors)


@pytest.mark.parametrize(
    ("vectors", "asked", "message"),
    [
        ({"clip_l": torch.ones(2, 64)}, 2, "clip_g"),
        ({"clip_l": torch.ones(2, 64), "clip_g": torch.ones(2, 64)}, 3, "set Vectors to 2"),
        ({"clip_l": torch.ones(2, 768), "clip_g": torch.ones(2, 64)}, 2, "768 wide"),
        ({"clip_l": torch.ones(2, 64), "clip_g": torch.full((2, 64), float("nan"))}, 2, "NaN"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(about, vectors, asked, message):
    from ti_fix.train.initial import _fitting

    with pytest.raises(WrongUse, match=message):
        _fitting(Embedding(name="x", vectors=vectors), config(vectors=asked), SDXL, {"clip_l": 64, "clip_g": 64})


def test_a_missing_file_says_so(start):
    with pytest.raises(WrongUse, match="start file"):
        start(start="file", start_text="/nowhere/there.safetensors")
