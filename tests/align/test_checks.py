"""The checks on models made here: each fault is named by the check that is meant for it, sound models by none."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
import torch

from tests.cases import folder
from ti_fix.align import CHECKS, align
from ti_fix.align.selftest import FAULTS, complaints, healthy_model, pooling_encoder, self_test
from ti_fix.embedding import CLIP_G, CLIP_L, VOCABULARY_SIZE
from ti_fix.text_model import TextModel, TokenTable
from ti_fix.tokenizer import encode

HEALTHY = healthy_model()


def outcome(model: TextModel, code: str, place: int = 0):
    found = [o for o in align(model).outcomes if o.code == code and o.place in ("", model.encoders[place].place)]
    assert len(found) == 1
    return found[0]


def with_encoder(place: int, **fields) -> TextModel:
    encoders = list(HEALTHY.encoders)
    encoders[place] = replace(encoders[place], **fields)
    return replace(HEALTHY, encoders=tuple(encoders))


def with_rows(change) -> TextModel:
    table = HEALTHY.encoders[1].table.read().clone()
    return with_encoder(1, table=TokenTable.of(change(table)))


def test_the_self_test_finds_and_mends_every_fault_without_a_false_alarm():
    tried, false_alarms = self_test(CHECKS)
    assert [t.fault for t in tried if not t.found] == []
    assert [t.fault for t in tried if not t.repaired] == []
    assert false_alarms == 0
    assert len(tried) == len(FAULTS)


def test_the_self_test_sees_a_check_that_sleeps():
    awake = [c for c in CHECKS if c.code != "position-ids"]
    some = [f for f in FAULTS if f.name in ("max length 76", "rounded position_ids")]
    tried, _ = self_test(awake, [HEALTHY], some)
    assert [t.fault for t in tried if not t.found] == ["rounded position_ids"]


def test_a_sound_model_has_no_finding_at_all_and_stays_the_same_object():
    report = align(HEALTHY)
    assert report.findings == ()
    assert report.after is HEALTHY


def test_a_second_look_takes_a_moment():
    def read():
        raise AssertionError("the table was read")

    tables = [
        TokenTable(shape=(VOCABULARY_SIZE, e.spec.width), dtype=torch.float16, read=read) for e in HEALTHY.encoders
    ]
    encoders = [replace(e, table=table, encode=None) for e, table in zip(HEALTHY.encoders, tables, strict=True)]
    model = replace(HEALTHY, encoders=tuple(encoders))
    assert align(model, quick=True).light == "green"
    started = time.process_time()
    align(model, quick=True)
    assert time.process_time() - started < 0.1


def test_examining_changes_nothing():
    broken = FAULTS[0].inject(HEALTHY)
    before = broken.encoders[0].tokenizer
    report = align(broken)
    assert broken.encoders[0].tokenizer is before
    assert report.before is broken
    assert complaints(align(report.after)) == ()


def zeroed(table):
    table[5] = 0
    return table


def doubled(table):
    table[100] = table[7]
    table[101] = table[7]
    return table


def infinite(table):
    table[0, 0] = float("inf")
    return table


@pytest.mark.parametrize(
    ("change", "severity", "found"),
    [
        (zeroed, "warning", "row 5 is zero"),
        (doubled, "warning", "2 rows twice"),
        (infinite, "error", "row 0 is not finite"),
    ],
)
def test_ill_rows(change, severity, found):
    seen = outcome(with_rows(change), "table-values", 1)
    assert (seen.severity, seen.found.partition(";")[0]) == (severity, found)


def test_only_the_ill_row_is_replaced():
    broken = with_rows(infinite)
    before, after = broken.encoders[1].table.read(), align(broken).after.encoders[1].table.read()
    assert torch.equal(after[1:], before[1:])
    assert torch.allclose(after[0].float(), before[1:].float().mean(dim=0), atol=1e-3)


@pytest.mark.parametrize("rows", [VOCABULARY_SIZE - 1, VOCABULARY_SIZE + 3])
def test_tables_of_another_length(rows):
    table = HEALTHY.encoders[1].table.read()
    extra = torch.rand(max(0, rows - VOCABULARY_SIZE), table.shape[1]).half()
    model = with_encoder(1, table=TokenTable.of(torch.cat([table[:rows], extra])), config={}, encode=None)
    seen = outcome(model, "table-rows", 1)
    assert seen.severity == ("error" if rows < VOCABULARY_SIZE else "warning")
    assert seen.repaired == ("" if rows < VOCABULARY_SIZE else f"{VOCABULARY_SIZE} rows")


def test_an_added_token_without_a_row_is_named_as_the_index_error_that_it_becomes():
    tokenizer = replace(HEALTHY.encoders[0].tokenizer, added={"<toy>": VOCABULARY_SIZE})
    seen = outcome(with_encoder(0, tokenizer=tokenizer), "table-rows")
    assert seen.severity == "error"
    assert "out of range" in seen.message


@pytest.mark.parametrize(
    ("layer", "final_norm", "severity"),
    [(2, False, None), (1, True, "warning"), (2, True, "warning"), (3, False, "warning")],
)
def test_the_layer_that_sdxl_is_read_at(layer, final_norm, severity):
    assert outcome(with_encoder(0, layer=layer, final_norm=final_norm), "layer").severity == severity


def cut(prompt):
    return {e.spec.key: [e.tokenizer.pack(prompt)] for e in HEALTHY.encoders}


def short(prompt):
    return {key: [ids[:76] for ids in lists] for key, lists in HEALTHY.chunks(prompt).items()}


@pytest.mark.parametrize(("chunks", "severity"), [(cut, "note"), (short, "error")])
def test_long_prompts(chunks, severity):
    assert outcome(replace(HEALTHY, chunks=chunks), "chunks").severity == severity


@pytest.mark.parametrize(
    ("ids", "severity"),
    [
        ([*range(77)], None),
        ([float(i) for i in range(77)], None),
        ([*range(40), 40, *range(40, 76)], "error"),
        ([i + 0.04 for i in range(77)], "warning"),
        ([*range(76)], "error"),
    ],
)
def test_position_ids(ids, severity):
    seen = outcome(with_encoder(0, position_ids=torch.tensor([ids])), "position-ids")
    assert bool(seen.severity) == bool(severity)
    if severity and len(ids) == 77:
        assert seen.severity == severity
    assert not severity or seen.repaired == "0 to 76"


@pytest.mark.parametrize(("eos", "severity"), [(49407, None), (2, "note"), (0, "error"), (49406, "error")])
def test_the_end_token_of_a_config(eos, severity):
    model = with_encoder(1, config={"eos_token_id": eos})
    assert outcome(model, "config-ids", 1).severity == severity


def test_the_facts_of_public_reports_on_token_ids():
    facts = json.loads((folder() / "handover" / "T01" / "token_ids.json").read_text())
    assert (facts["clip_l_pad"], facts["clip_g_pad"]) == (CLIP_L.pad_id, CLIP_G.pad_id)
    assert (facts["bos"], facts["eos"], facts["vocab_rows"]) == (CLIP_L.bos_id, CLIP_L.eos_id, VOCABULARY_SIZE)
    assert encode("a !")[-1] == 256
    for case in facts["pooled"]:
        ids = torch.tensor(case["ids"] + [0] * (77 - len(case["ids"])))[None]
        rows = VOCABULARY_SIZE + 1
        table = torch.arange(rows, dtype=torch.float32)[:, None].repeat(1, 4)
        legacy, right = (pooling_encoder(table, eos) for eos in (2, 49407))
        for encoder, place in ((legacy, case["argmax_index"]), (right, case["eos_index"])):
            hidden, pooled = encoder(ids)
            assert torch.equal(pooled[0], hidden[0, place])
