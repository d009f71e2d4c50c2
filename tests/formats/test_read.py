"""Files as they come: damage and litter, endings, names."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from ti_fix.formats import files_in, read

LEFT, RIGHT = torch.full((2, 768), 0.01), torch.full((2, 1280), 0.01)
BOTH = {"clip_l": LEFT, "clip_g": RIGHT}
PACKED = safetensors.torch.save(BOTH)


def code(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    parsed = read(path)
    assert parsed.embedding is None
    (finding,) = parsed.findings
    assert finding.severity == "error"
    assert finding.message.startswith(f"{path.name}: ")
    return finding.code


def with_header_of(length: int) -> bytes:
    start = 8 + int.from_bytes(PACKED[:8], "little")
    return length.to_bytes(8, "little") + PACKED[8:start].rstrip().ljust(length) + PACKED[start:]


@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580])
def test_a_header_length_that_looks_like_a_pickle(length: int, tmp_path: Path) -> None:
    content = with_header_of(length)
    assert content[0] == 0x80
    assert content[1] in (2, 3, 4, 5)
    (tmp_path / "hero.safetensors").write_bytes(content)
    parsed = read(tmp_path / "hero.safetensors")
    assert parsed.embedding is not None
    assert parsed.findings == ()


DAMAGE = {
    "empty": (b"", "empty"),
    "blank": (b"  \r\n ", "empty"),
    "zero bytes": (bytes(4000), "damaged"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0f\nsize 3840\n", "lfs-pointer"),
    "older lfs pointer": (b"version https://hawser.github.com/spec/v1\noid sha256:0f\nsize 3\n", "lfs-pointer"),
    "page": (b"<!DOCTYPE html><html><title>Log in</title>", "web-page"),
    "page with a mark": (b"\xef\xbb\xbf\n <html lang=en>", "web-page"),
    "page in utf-16": ("\ufeff<html><title>Log in</title>".encode("utf-16-le"), "web-page"),
    "storage error": (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "web-page"),
    "json error": (b'{"error":{"message":"Unauthorized"}}', "json-error"),
    "json": (b'[1, 2, 3]', "json-error"),
    "text": (b"put your embeddings here", "plain-text"),
    "rar": (b"Rar!\x1a\x07\x00" + bytes(50), "not-an-embedding"),
    "zip of something else": (b"PK\x03\x04" + bytes(60), "truncated"),
    "cut in the header": (PACKED[:40], "truncated"),
    "cut in the data": (PACKED[:-100], "truncated"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".bin"])
def test_damage_is_named(what: str, ending: str, tmp_path: Path) -> None:
    content, expected = DAMAGE[what]
    assert code(tmp_path / f"hero{ending}", content) == expected


@pytest.mark.parametrize(
    ("content", "words"), [("page", "'Log in'"), ("storage error", "AccessDenied"), ("json error", "Unauthorized")]
)
def test_what_the_site_said_is_quoted(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "hero.safetensors"
    path.write_bytes(DAMAGE[content][0])
    assert words in read(path).findings[0].message


@pytest.mark.parametrize(
    "name", ["notes.txt", "hero.json", "hero.civitai.info", "photo.jpg", "x.yaml", "hero.optim", "README"]
)
@pytest.mark.parametrize("content", [b"", b"some words", b'{"a": 1}', bytes(range(256))])
def test_litter_that_is_named_is_ignored(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    parsed = read(tmp_path / name)
    assert parsed.ignored
    assert parsed.findings == ()


def test_an_embedding_under_a_foreign_ending_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "hero.dat").write_bytes(PACKED)
    assert read(tmp_path / "hero.dat").embedding is not None


@pytest.mark.parametrize(
    ("name", "trigger", "codes"),
    [
        ("hero.safetensors", "hero", []),
        ("hero.SafeTensors", "hero", []),
        ("hero.v2.safetensors", "hero.v2", []),
        ("hero.pt", "hero", ["wrong-ending"]),
        ("hero.pti", "hero", ["unusual-ending"]),
        ("hero.safetensors.corrupted", "hero", ["renamed-by-host"]),
        ("hero.pt.corrupted", "hero", ["renamed-by-host"]),
    ],
)
def test_names_and_endings(name: str, trigger: str, codes: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(PACKED)
    parsed = read(tmp_path / name)
    assert (parsed.trigger, [f.code for f in parsed.findings]) == (trigger, codes)
    assert parsed.embedding is not None


def test_a_damaged_file_that_forge_renamed_says_both(tmp_path: Path) -> None:
    (tmp_path / "hero.pt.corrupted").write_bytes(b"<html>")
    (finding,) = read(tmp_path / "hero.pt.corrupted").findings
    assert "Forge renamed it" in finding.message
    assert "web page" in finding.message


def test_a_half_download_is_named(tmp_path: Path) -> None:
    assert code(tmp_path / "hero.safetensors.crdownload", PACKED[:500]) == "unfinished"


@pytest.mark.parametrize("stem", ["learned_embeds", "learned_embeds-steps-500", "embeddings", "Embedding"])
def test_a_generic_stem_gives_way_to_the_placeholder(stem: str, tmp_path: Path) -> None:
    torch.save({"<my-toy>": LEFT}, tmp_path / f"{stem}.bin")
    parsed = read(tmp_path / f"{stem}.bin")
    assert parsed.trigger == "my-toy"
    assert parsed.embedding is not None
    assert stem in parsed.embedding.aliases


def test_a_generic_stem_without_a_placeholder_takes_the_folders_name(tmp_path: Path) -> None:
    (tmp_path / "my-style").mkdir()
    path = tmp_path / "my-style" / "embeddings.safetensors"
    path.write_bytes(PACKED)
    assert read(path).trigger == "my-style"


def test_accents_are_composed(tmp_path: Path) -> None:
    (tmp_path / "E\u0301le\u0301onore.safetensors").write_bytes(PACKED)
    parsed = read(tmp_path / "E\u0301le\u0301onore.safetensors")
    assert parsed.trigger == "\u00c9l\u00e9onore"


def test_a_folder_is_searched_for_what_could_be_embeddings(tmp_path: Path) -> None:
    wanted = ["a.pt", "b.SAFETENSORS", "c.png", "d.bin", "sub/e.pti", "sub/deep/f.webp", "g.pt.corrupted", "h.zip"]
    litter = [
        ".hidden.pt",
        "i.preview.png",
        "j.txt",
        "k.json",
        "l.optim",
        "m.jpg",
        ".git/n.pt",
        "o.preview.safetensors.png",
    ]
    for name in wanted + litter:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "a-folder.pt").mkdir()
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    found = [p.relative_to(tmp_path).as_posix() for p in files_in(tmp_path)]
    assert sorted(found) == sorted(wanted)


TWELVE = torch.arange(1, 13)[:, None] * torch.full((12, 768), 0.01)
MIXED = {
    "webui with a bigG half": ({"string_to_param": {"*": LEFT}, "clip_g": RIGHT}, BOTH),
    "both labels on CLIP-L vectors": ({"clip_g": LEFT * 2, "clip_l": LEFT}, {"clip_l": LEFT}),
    "both labels on bigG vectors": ({"clip_l": RIGHT * 2, "clip_g": RIGHT}, {"clip_g": RIGHT}),
    "a label and a copy": ({**BOTH, "emb_params": LEFT}, BOTH),
    "ten and more parts": ({f"<t>_{i}": row for i, row in enumerate(TWELVE)}, {"clip_l": TWELVE}),
}  # fmt: skip


@pytest.mark.parametrize("what", MIXED)
def test_odd_mixtures(what: str, tmp_path: Path) -> None:
    content, expected = MIXED[what]
    torch.save(content, tmp_path / "hero.pt")
    parsed = read(tmp_path / "hero.pt")
    assert parsed.embedding is not None, parsed.findings
    assert {k: v.tolist() for k, v in parsed.embedding.vectors.items()} == {k: v.tolist() for k, v in expected.items()}
