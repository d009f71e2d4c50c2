"""Maps against a plain attention processor, planted attention, and everything that breaks such recorders elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diffusers.models.attention_processor import AttnProcessor
from torch import nn

from tests.heatmap.making import PROMPT, host, record, request, wanted
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.heatmap import MapSettings, Recorder, Wanted, facts_of, iou, pointing
from ti_fix.heatmap.capture import _grid, _repeats

WORDS = ("mycat", "red", "circle")
EVERY = {str(i): (i,) for i in range(77)}


class Plain(AttnProcessor):
    """diffusers' unoptimised attention, with the shares written down."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, **_):
        given = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        q, k, v = (
            attn.head_to_batch_dim(f(x))
            for f, x in zip((attn.to_q, attn.to_k, attn.to_v), (hidden_states, given, given), strict=True)
        )
        shares = attn.get_attention_scores(q, k, attention_mask)
        if encoder_hidden_states is not None:
            self.log.append(shares.view(len(hidden_states), attn.heads, *shares.shape[1:]).mean(1))
        return attn.to_out[0](attn.batch_to_head_dim(torch.bmm(shares, v)))


def plain_shares(requests):
    """[(batch, places, tokens)] of every cross-attention, in the order in which they ran; wanted rows come first."""
    made, log = host(), []
    unet = made.model().unet
    before = unet.attn_processors
    try:
        unet.set_attn_processor(Plain(log))
        made.generate_many(requests)
    finally:
        unet.set_attn_processor(before)
    return [shares[: len(requests)] for shares in log]


def expected(requests, places, sizes):
    """Mean over all layers and steps at the latents' size, for the first request."""
    total, log = 0, plain_shares(requests)
    for shares in log:
        grid = next(size for size in sizes if size[0] * size[1] == shares.shape[1])
        word = shares[0][:, list(places)].sum(1).view(1, 1, *grid)
        total = total + F.interpolate(word, size=sizes[0], mode="bilinear", align_corners=False)[0, 0]
    return total / len(log)


@pytest.mark.parametrize(("width", "height"), [(64, 64), (96, 64), (40, 64)])
def test_maps_equal_a_plain_attention_processor(width, height):
    requests = [request(width=width, height=height)]
    _, (found,) = record(requests, WORDS)
    h, w = height // 8, width // 8
    sizes = [(h, w), (-(-h // 2), -(-w // 2)), (-(-h // 4), -(-w // 4))]
    assert (found.height, found.width) == (h, w) and found.steps == 2
    for word, places in {"mycat": (2, 3, 4), "red": (7,), "circle": (8,)}.items():
        assert torch.allclose(found.maps[found.words.index(word)], expected(requests, places, sizes), atol=1e-6)


def test_the_shares_of_all_tokens_sum_to_one():
    _, (found,) = record([request()], EVERY)
    assert torch.allclose(found.maps.sum(0), torch.ones(8, 8), atol=1e-5)
    _, (sharp,) = record([request()], EVERY, MapSettings(temperature=0.07))
    assert torch.allclose(sharp.maps.sum(0), torch.ones(8, 8), atol=1e-5)
    entropies = [np.mean([f.entropy for f in facts_of(maps)]) for maps in (found, sharp)]
    assert entropies[1] < entropies[0]


def test_a_batch_of_four_equals_four_singles():
    requests = [
        request(seed=seed, prompt=p) for seed, p in enumerate((PROMPT, PROMPT, "a red circle", "mycat red circle"))
    ]
    words = [("mycat", "red", "circle"), ("mycat", "red", "circle"), ("red", "circle"), ("mycat", "red")]
    made = host()
    every = [wanted(made.model(), [r], w)[0] for r, w in zip(requests, words, strict=True)]
    with Recorder(made.model().unet) as recorder:
        recorder.expect([Wanted(picture=i, context=w.context, places=w.places) for i, w in enumerate(every)])
        together = made.generate_many(requests)
    for number, (each, many) in enumerate(zip(requests, recorder.maps(), strict=True)):
        (picture,), (single,) = record([each], words[number])
        assert many.picture == number and many.words == single.words
        assert torch.allclose(many.maps, single.maps, atol=1e-5)
        assert np.abs(np.asarray(picture, int) - np.asarray(together[number], int)).max() <= 1


def test_pictures_are_the_same_with_maps_on_and_off():
    plain = host().generate(request())
    (picture,), _ = record([request()], WORDS)
    assert np.array_equal(np.asarray(plain), np.asarray(picture))


def test_prompts_of_several_chunks():
    prompt = ", ".join(["a long story about nothing"] * 20) + ", a mycat in red"
    requests = [request(prompt, cfg_scale=3.0)]
    _, (found,) = record(requests, ("mycat", "red", "story"))
    tokens = wanted(host().model(), requests, ())[0].context.shape[0]
    _, (every,) = record(requests, {str(i): (i,) for i in range(tokens)})
    assert tokens == 154 and torch.allclose(every.maps.sum(0), torch.ones(8, 8), atol=1e-5)
    assert found.maps.mean() > 0 and (found.maps.flatten(1).sum(1) > 0).all()


def test_a_second_pass_has_maps_of_its_own():
    made = host()
    small, large = request(), request(width=128, height=96)
    with Recorder(made.model().unet) as recorder:
        for each in (small, large):
            recorder.expect(wanted(made.model(), [each], WORDS), 0)
            made.generate(each)
    assert [(m.width, m.height) for m in recorder.maps()] == [(8, 8), (16, 12)]
    _, (alone,) = record([large], WORDS)
    assert torch.allclose(recorder.maps()[1].maps, alone.maps, atol=1e-6)


def test_texts_of_one_picture_keep_their_words_apart():
    """As AND tells them side by side and prompt editing one after the other."""
    discs = [torch.zeros(8, 8, dtype=torch.bool) for _ in range(3)]
    for number, disc in enumerate(discs):
        disc[2 * number : 2 * number + 2, 1:6] = True
    unet = Planted(discs, 6)
    told = torch.eye(6).repeat(1, 2)
    other = told.flip(0)  # the words stand at other places here: token 1 is what token 4 was
    first = Wanted(picture=0, context=told, places={"red": (1,), "circle": (2,)})
    second = Wanted(picture=0, context=other, places={"blue": (2,), "circle": (3,)})
    with Recorder(unet) as recorder:
        recorder.expect([first, second], 0)
        unet(torch.zeros(2, 4, 8, 8), 0, torch.stack([told, other]))
    (together,) = recorder.maps()
    with Recorder(unet) as recorder:
        for step, each in enumerate((first, second)):
            recorder.expect([each], step)
            unet(torch.zeros(1, 4, 8, 8), 0, each.context[None])
    (one_after_the_other,) = recorder.maps()
    for found, steps in ((together, 1), (one_after_the_other, 2)):
        assert found.words == ("red", "circle", "blue") and found.steps == steps
        by_word = dict(zip(found.words, found.maps, strict=True))
        assert iou(by_word["red"], discs[0]) > 0.9 and iou(by_word["blue"], discs[2]) > 0.9
        assert iou(by_word["circle"], discs[1]) > 0.9
    assert torch.allclose(together.maps, one_after_the_other.maps)


def test_layers_and_steps_can_be_chosen():
    requests = [request(steps=4)]
    _, (every,) = record(requests, WORDS)
    parts = [record(requests, WORDS, MapSettings(layers=part))[1][0] for part in ("down", "middle", "up")]
    assert sum(part.layers for part in parts) == every.layers
    mean = sum(part.maps * part.layers for part in parts) / every.layers
    assert torch.allclose(mean, every.maps, atol=1e-6)
    halves = [record(requests, WORDS, MapSettings(first=a, last=b))[1][0] for a, b in ((0, 0.5), (0.5, 1))]
    assert [half.steps for half in halves] == [2, 2]
    assert torch.allclose((halves[0].maps + halves[1].maps) / 2, every.maps, atol=1e-6)
    _, (late,) = record(requests, WORDS, MapSettings(first=0.9))
    assert late.steps == 1  # the one that lies in it partly
    with pytest.raises(WrongUse, match="below Until"):
        record(requests, WORDS, MapSettings(first=0.5, last=0.5))


def test_a_picture_without_any_of_the_words_is_made_all_the_same():
    pictures, found = record([request()], ())
    assert len(pictures) == 1 and found == []


def test_one_encoder_alone():
    requests = [request()]
    maps = {e: record(requests, EVERY, MapSettings(encoder=e))[1][0].maps for e in ("both", "clip_l", "clip_g")}
    assert all(torch.allclose(m.sum(0), torch.ones(8, 8), atol=1e-5) for m in maps.values())
    assert not torch.allclose(maps["clip_l"], maps["clip_g"], atol=1e-3)
    # what both ask for is the product of what each asks for, token by token: logits add up
    made = host()
    attention = next(m for n, m in made.model().unet.named_modules() if n.endswith("attn2"))
    context = wanted(made.model(), requests, ())[0].context
    halves = [context.clone(), context.clone()]
    halves[0][:, 64:], halves[1][:, :64] = 0, 0
    assert torch.allclose(sum(map(attention.to_k, halves)), attention.to_k(context), atol=1e-4)


def test_hooks_are_taken_off_also_after_an_error():
    made = host()
    unet = made.model().unet

    def hooks():
        return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in unet.modules()]

    before = hooks()
    with Recorder(unet):
        assert hooks() != before
    broken = Recorder(unet)

    def fails():
        with broken:
            made.generate(request(width=60))  # no multiple of what the model can make

    with pytest.raises(TiFixError):
        fails()
    assert hooks() == before
    with Recorder(unet) as recorder, pytest.raises(TiFixError, match="already"):
        recorder.__enter__()
    assert hooks() == before


def test_a_model_without_cross_attention_is_refused():
    with pytest.raises(TiFixError, match="attn2"):
        Recorder(nn.Linear(2, 2))


class Planted(nn.Module):
    """A UNet of one layer whose places look for the word that was planted there."""

    def __init__(self, regions, tokens):
        super().__init__()
        self.attn2 = nn.Module()
        self.attn2.to_q, self.attn2.to_k, self.attn2.heads = nn.Identity(), nn.Identity(), 2
        width = tokens * 2
        wish = torch.zeros(regions[0].numel(), width)
        for token, region in enumerate(regions, 1):
            wish[region.flatten(), token] = wish[region.flatten(), tokens + token] = 30.0
        self.wish = wish

    def forward(self, x, _times, context):
        self.attn2.to_q(self.wish.expand(len(x), -1, -1))
        self.attn2.to_k(context)
        return x


def test_planted_attention_is_found():
    generator = torch.Generator().manual_seed(0)
    hits, overlaps = [], []
    for _ in range(20):
        y, x, r = (int(torch.randint(a, b, (1,), generator=generator)) for a, b in ((8, 24), (8, 32), (3, 8)))
        rows, columns = torch.meshgrid(torch.arange(32), torch.arange(40), indexing="ij")
        disc = (rows - y) ** 2 + (columns - x) ** 2 <= r * r
        unet = Planted([disc, ~disc & (rows < 4)], 6)
        context = torch.eye(6).repeat(1, 2)
        with Recorder(unet) as recorder:
            recorder.expect([Wanted(picture=0, context=context, places={"disc": (1,)})])
            unet(torch.zeros(1, 4, 32, 40), 0, context[None])
        (found,) = recorder.maps()
        hits.append(pointing(found.maps[0], disc))
        overlaps.append(iou(found.maps[0], disc))
    assert all(hits) and min(overlaps) >= 0.9


def test_text_that_a_host_repeats_or_pads_is_recognised():
    text, other = torch.randn(77, 8), torch.randn(77, 8)
    assert _repeats(text, text) == 1
    assert _repeats(torch.cat([text, text]), text) == 2
    assert _repeats(torch.cat([text, other]), text) == 1
    assert _repeats(torch.cat([other, text]), text) == 0
    assert _repeats(text.half(), text) == 1
    assert _repeats(other[:50], text) == 0


def test_repeated_text_does_not_change_a_map():
    disc = torch.zeros(8, 8, dtype=torch.bool)
    disc[2:5, 3:6] = True
    context, maps = torch.eye(6).repeat(1, 2), []
    for times in (1, 2):
        unet = Planted([disc], 6)
        with Recorder(unet) as recorder:
            recorder.expect([Wanted(picture=0, context=context, places={"disc": (1,)})])
            unet(torch.zeros(1, 4, 8, 8), 0, context.repeat(times, 1)[None])
        maps.append(recorder.maps()[0].maps)
    assert torch.allclose(*maps, atol=1e-6)


def test_layers_of_an_unknown_size_are_passed_over_and_named():
    assert _grid((13, 9), 35) == (7, 5) and _grid((13, 9), 12) == (4, 3) and _grid((8, 8), 50) is None
    unet = Planted([torch.ones(5, 10, dtype=torch.bool)], 6)
    context = torch.eye(6).repeat(1, 2)
    with Recorder(unet) as recorder:
        recorder.expect([Wanted(picture=0, context=context, places={"a": (1,)})])
        unet(torch.zeros(1, 4, 8, 8), 0, context[None])
    assert recorder.skipped == {"attn2"} and recorder.maps() == []
