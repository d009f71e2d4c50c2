"""Encoders in memory: the fault of the pooled text proved on transformers' own code, repairs given back."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.align import models
from ti_fix.align import align, extra_embeddings, repaired
from ti_fix.embedding import CLIP_G, CLIP_L, SDXL_REFINER, VOCABULARY_SIZE
from ti_fix.hosts.text_modules import encoder_of, tokenizer_of
from ti_fix.text_model import TextModel

BEHIND = ("a photo of <toy> on red grass", "a photo of <toy> in the sea at night")
"""Two prompts that differ only behind the added token."""


class Loaded:
    """bigG as a trainer leaves it that adds a token the usual way."""

    def __init__(self, *, ids=models.LEGACY, added=True):
        self.module = models.text_encoder(CLIP_G, ids=ids)
        self.tokenizer = (models.changeable_tokenizer if added else models.tokenizer)(CLIP_G)
        if added:
            self.tokenizer.add_tokens("<toy>")
            self.module.resize_token_embeddings(len(self.tokenizer))
        self.model = TextModel(
            name="loaded",
            family=SDXL_REFINER,
            encoders=(encoder_of("text_encoder_2", CLIP_G, self.module, tokenizer_of(self.tokenizer)),),
        )

    @torch.no_grad()
    def pooled(self, prompt):
        ids = self.tokenizer(prompt, padding="max_length", truncation=True, return_tensors="pt").input_ids
        return self.module(input_ids=ids).text_embeds[0]

    def state(self):
        return copy.deepcopy((self.module.state_dict(), self.module.config.to_dict()))


def test_the_pooled_text_loses_what_stands_behind_an_added_token():
    loaded = Loaded()
    first, second = map(loaded.pooled, BEHIND)
    assert torch.equal(first, second)  # the fault: two prompts, one pooled text
    report = align(loaded.model)
    assert report.light == "red"
    faults = {o.code: o for o in report.outcomes if o.severity == "error"}
    assert set(faults) == {"pooled-position", "config-ids"}
    assert faults["pooled-position"].found == "position 2"
    with repaired(loaded.model, report.changes) as model:
        one, other = map(loaded.pooled, BEHIND)
        assert not torch.allclose(one, other, atol=1e-3)
        assert align(model).light == "green"
    assert all(map(torch.equal, map(loaded.pooled, BEHIND), (first, second)))  # given back


def test_the_repaired_pooled_text_is_that_of_a_model_with_the_right_ids():
    loaded = Loaded()
    truth = Loaded(ids={"bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 0})
    truth.module.load_state_dict(loaded.module.state_dict())
    with repaired(loaded.model, align(loaded.model).changes):
        for prompt in BEHIND:
            assert torch.equal(loaded.pooled(prompt), truth.pooled(prompt))


def test_without_added_tokens_the_published_ids_do_no_harm_and_are_a_note():
    loaded = Loaded(added=False)
    report = align(loaded.model)
    assert report.light == "green"
    assert {o.code: o.severity for o in report.outcomes if o.severity} == {"config-ids": "note", "exclamation": "note"}


def test_the_row_of_an_added_token_is_an_embedding():
    loaded = Loaded()
    (found,) = extra_embeddings(loaded.model)
    assert (found.name, found.aliases) == ("toy", ("<toy>",))
    assert torch.equal(
        found.vectors["clip_g"][0], loaded.module.get_input_embeddings().weight[VOCABULARY_SIZE].detach()
    )


def test_every_part_that_was_written_is_given_back_bit_for_bit():
    module = models.text_encoder(CLIP_L)
    with torch.no_grad():
        module.get_input_embeddings().weight[2368, 1] = float("nan")
    module.embeddings.position_ids = torch.tensor([[0, *range(76)]])
    parameter, positions = module.get_input_embeddings().weight, module.embeddings.position_ids
    before = copy.deepcopy((module.state_dict(), module.config.to_dict()))
    model = TextModel(name="ill", family=SDXL_REFINER, encoders=(encoder_of("text_encoder", CLIP_L, module),))
    report = align(model)
    assert {o.code for o in report.outcomes if o.severity == "error"} == {"table-values", "position-ids"}
    with repaired(model, report.changes):
        assert torch.isfinite(module(input_ids=torch.tensor([[49406, 2368, 49407]])).last_hidden_state).all()
        assert torch.equal(module.embeddings.position_ids, torch.arange(77)[None])
    assert module.get_input_embeddings().weight is parameter
    assert module.embeddings.position_ids is positions
    after = module.state_dict(), module.config.to_dict()
    assert after[1] == before[1]
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(after[0].values(), before[0].values(), strict=True)
    )


def test_what_was_written_is_given_back_when_a_later_change_fails():
    loaded = Loaded()
    before = loaded.state()
    report = align(loaded.model)

    def fail(_encoder):
        raise RuntimeError("stop")

    bad = type(report.changes[0])(part="position_ids", place="text_encoder_2", make=fail)
    with pytest.raises(RuntimeError), repaired(loaded.model, [*report.changes, bad]):
        pass
    assert loaded.state()[1] == before[1]


@pytest.mark.parametrize("spec", [CLIP_L, CLIP_G])
def test_transformers_own_tokenizer_passes(spec):
    module, own = models.text_encoder(spec, ids={}), tokenizer_of(models.tokenizer(spec))
    model = TextModel(name="own", family=SDXL_REFINER, encoders=(encoder_of("text_encoder", spec, module, own),))
    report = align(model)
    assert report.light == "green"
    assert {o.code for o in report.outcomes} >= {"vocabulary", "merges", "special-ids", "id-lists", "agreement"}


def test_transformers_tokenizer_that_follows_the_config_is_named():
    """The harmful direction: ids of the config copied onto the tokenizer."""
    own = models.changeable_tokenizer(CLIP_L)
    own.pad_token, own.eos_token = '"', "#"  # ids 1 and 2
    module = models.text_encoder(CLIP_L)
    model = TextModel(
        name="own", family=SDXL_REFINER, encoders=(encoder_of("text_encoder", CLIP_L, module, tokenizer_of(own)),)
    )
    (found,) = (o for o in align(model).outcomes if o.code == "special-ids")
    assert (found.severity, found.found) == ("error", "start 49406, end 2, pad 1")
    assert found.repaired == "start 49406, end 49407, pad 49407"
