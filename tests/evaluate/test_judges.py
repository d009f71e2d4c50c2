"""The towers give what independent implementations give; files of strangers are refused in words."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.evaluate.judges import SIDE, published_dino, transformers_clip, transformers_dino
from ti_fix.errors import UnreadableFile, WrongUse
from ti_fix.evaluate import features
from ti_fix.evaluate.backbone import Preprocessing
from ti_fix.evaluate.clip_tower import ClipTower, from_transformers, shape_of
from ti_fix.evaluate.dino_tower import DinoTower
from ti_fix.evaluate.texts import batch_of, joined, parts
from ti_fix.tokenizer import encode


def picture(seed: int, size=(40, 32)) -> Image.Image:
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def unit(x):
    return torch.nn.functional.normalize(x, dim=-1)


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
def test_both_towers_equal_those_of_transformers(act):
    reference = transformers_clip(act)
    state = from_transformers(reference.state_dict())
    tower = ClipTower(shape_of(state, quick_gelu=act == "quick_gelu"), state)
    pixels = torch.randn(3, 3, SIDE, SIDE)
    ids, _, _ = batch_of(["a red circle", "x", "one two three, four"], 77)
    with torch.no_grad():
        expected = unit(reference.visual_projection(reference.vision_model(pixels).pooler_output))
        assert torch.allclose(tower.encode_image(pixels), expected, atol=1e-6)
        expected = unit(reference.text_projection(reference.text_model(ids).pooler_output))
        assert torch.allclose(tower.encode_text(ids), expected, atol=1e-6)
    assert tower.scale == pytest.approx(float(reference.logit_scale.exp()))


def test_dino_equals_transformers_also_on_another_grid():
    reference = transformers_dino()
    tower = DinoTower(published_dino(reference), heads=2)
    for side in (70, 98):
        pixels = torch.randn(2, 3, side, side)
        with torch.no_grad():
            expected = unit(reference(pixels).last_hidden_state[:, 0])
        assert torch.allclose(tower.encode_image(pixels), expected, atol=2e-6)


def test_a_file_of_transformers_is_read_with_the_configuration_beside_it(tmp_path):
    reference = transformers_clip("gelu")
    save_file(reference.state_dict(), tmp_path / "judge.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {"hidden_act": "gelu"}}))
    judge = features.from_file(tmp_path / "judge.safetensors")
    assert judge.facts.name == "judge" and "32" in judge.facts.preprocessing
    pixels = Preprocessing(size=SIDE, resize=SIDE).pixels([picture(1)])
    expected = unit(reference.visual_projection(reference.vision_model(pixels).pooler_output))
    assert torch.allclose(judge.pictures([picture(1)]), expected, atol=1e-6)
    other = features.from_file(_with_other_weights(tmp_path))
    assert other.facts.fingerprint != judge.facts.fingerprint


def _with_other_weights(folder):
    (folder / "other").mkdir()
    torch.save(transformers_clip("gelu", seed=1).state_dict(), folder / "other" / "judge.pt")
    return folder / "other" / "judge.pt"


def test_batches_do_not_change_a_feature(tmp_path):
    state = from_transformers(transformers_clip().state_dict())
    judge = features.from_state(state, "x", {"quick_gelu": True})
    many = [picture(i) for i in range(35)]
    assert torch.allclose(judge.pictures(many)[34:], judge.pictures(many[34:]), atol=1e-6)


def test_long_texts_are_read_in_parts_that_all_end():
    words = ", ".join(f"word{i}" for i in range(60))
    ids, owners, lengths = batch_of(["short", words, ""], 77)
    assert owners[0] == 0 and owners[-1] == 2 and set(owners[1:-1]) == {1} and len(owners) > 4
    assert all(49407 in row for row in ids.tolist()) and ids.shape[1] == 77
    inside = [token for row, owner in zip(ids.tolist(), owners, strict=True) if owner == 1 for token in row]
    assert [token for token in inside if token not in (0, 49406, 49407)] == encode(words)
    assert sum(lengths[1:-1]) == len(encode(words))


def test_parts_end_at_a_comma_where_one_is_near():
    comma = encode(",")[0]
    ids = [1] * 60 + [comma] + [2] * 40
    assert [len(part) for part in parts(ids, 75)] == [61, 40]
    assert [len(part) for part in parts([1] * 160, 75)] == [75, 75, 10]
    assert parts([], 75) == [[]]


def test_a_text_in_parts_is_their_mean_by_tokens():
    found = joined(torch.eye(3), [0, 0, 1], [3, 1, 5], 2)
    assert torch.allclose(found, torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) / torch.tensor([[10**0.5], [1.0]]))


def test_pictures_are_cut_as_torchvision_cuts_them():
    # a picture whose columns tell where they were: 40 x 32 -> 20 x 16 -> the middle 16 columns
    ramp = np.repeat(np.repeat(np.arange(40, dtype=np.uint8)[None, :, None] * 6, 32, 0), 3, 2)
    pixels = Preprocessing(size=16, resize=16, mean=(0, 0, 0), deviation=(1, 1, 1)).pixels([Image.fromarray(ramp)])
    assert pixels.shape == (1, 3, 16, 16)
    columns = pixels[0, 0, 8] * 255 / 6
    assert columns[0] == pytest.approx(4.5, abs=0.35) and columns[-1] == pytest.approx(34.5, abs=0.35)


def test_nothing_is_fetched_unasked(monkeypatch):
    monkeypatch.setattr(features, "find_spec", lambda _: None)
    with pytest.raises(WrongUse, match="open_clip_torch"):
        features.named("ViT-L-14/openai")


def test_an_unknown_judge_names_size_licence_and_source_before_it_asks(monkeypatch):
    import sys
    import types

    stand_in = types.ModuleType("open_clip")
    stand_in.list_pretrained_tags_by_model = lambda name: ["openai"] if name == "ViT-L-14" else []
    stand_in.create_model_and_transforms = lambda *_, **__: pytest.fail("fetched without a yes")
    monkeypatch.setitem(sys.modules, "open_clip", stand_in)
    monkeypatch.setattr(features, "find_spec", lambda _: True)
    with pytest.raises(features.NeedsDownload, match="890 MB, licence MIT, from OpenAI"):
        features.named("ViT-L-14/openai")
    with pytest.raises(WrongUse, match="knows no"):
        features.named("ViT-L-14/nobody")


def test_the_interrogators_file_is_found_where_it_was_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(features.Path, "home", lambda: tmp_path)
    assert features.interrogator_file([tmp_path]) is None
    (tmp_path / ".cache" / "clip").mkdir(parents=True)
    path = tmp_path / ".cache" / "clip" / "ViT-L-14.pt"
    path.write_bytes(b"not the published one")
    assert features.interrogator_file([tmp_path]) == path
    with pytest.raises(UnreadableFile, match="checksum"):
        features.from_file(path)


class _Harm:
    def __reduce__(self):
        return print, ("harm",)


@pytest.mark.parametrize("content", ["harm", "list", "empty", "other"])
def test_what_is_no_judge_is_refused(tmp_path, content, capsys):
    path = tmp_path / "judge.pt"
    things = {"harm": _Harm(), "list": [1], "empty": {}, "other": {"weight": torch.ones(2)}}
    torch.save(things[content], path)
    with pytest.raises(UnreadableFile):
        features.from_file(path)
    with pytest.raises(UnreadableFile):
        features.dino_from_file(path)
    assert "harm" not in capsys.readouterr().out
