"""The ledger checker proves good runs and finds each kind of bad one; a real loader's run over a ledger set passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import headway
from headway.formats import PackOptions, pack
from headway.loader.plan import Plan
from headway.loader.shuffled import Shuffled
from tests.laws.plans import view_of
from tests.ledger import SENSOR, Entry, History, LedgerSource, check, check_payload, ledger_spec, payload_of

VIEW = view_of(30)
PLAN = Plan(VIEW, Shuffled(), seed=0, epoch=0, segments=[(8, 0)])


def entry_of(plan: Plan, step: int, rank: int, ranks: int) -> Entry:
    """Return what a rank receives when all is well."""
    share = plan.batch_size // ranks
    planned = plan.step(step, rank * share, (rank + 1) * share)
    ids = tuple(planned.items.tolist())
    return Entry(
        rank=rank,
        epoch=0,
        step=step,
        slots=tuple(planned.slots.tolist()),
        ids=ids,
        valid=tuple(item >= 0 for item in ids),
        replaced=(-1,) * len(ids),
        payloads=tuple(payload_of(item) if item >= 0 else "" for item in ids),
    )


def good() -> History:
    return History([entry_of(PLAN, step, rank, 2) for step in range(PLAN.steps) for rank in range(2)])


def test_a_good_run_passes(tmp_path: Path) -> None:
    check(good(), {0: PLAN})
    good().write(tmp_path / "rank-0.jsonl")
    again = History.read([tmp_path / "rank-0.jsonl"])
    assert again == good()
    with open(tmp_path / "rank-0.jsonl", "a", encoding="utf-8") as file:
        file.write('{"rank": 1, "epo')  # killed while writing
    assert History.read([tmp_path / "rank-0.jsonl"]) == good()


def swapped(entry: Entry) -> Entry:
    return replace(entry, ids=entry.ids[::-1])


def mixed_up(entry: Entry) -> Entry:
    return replace(entry, payloads=(payload_of(29 if entry.ids[0] != 29 else 28), *entry.payloads[1:]))


def damaged(entry: Entry) -> Entry:
    text = payload_of(29)
    return replace(entry, payloads=(text[:-1] + "!", *entry.payloads[1:]))


def masked_with_payload(entry: Entry) -> Entry:
    return replace(entry, valid=(False, *entry.valid[1:]))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (swapped, "the plan says"),
        (mixed_up, "it should be item"),
        (damaged, "another hash"),
        (masked_with_payload, "not valid, but a payload came"),
    ],
)
def test_a_wrong_batch_is_found(change: Callable[[Entry], Entry], found: str) -> None:
    history = good()
    history.entries[2] = change(history.entries[2])
    with pytest.raises(AssertionError, match=found):
        check(history, {0: PLAN})


def test_lost_repeated_and_uneven_batches_are_found() -> None:
    history = good()
    lost = History([entry for entry in history.entries if entry.step != 1])
    with pytest.raises(AssertionError, match="8 places were never received"):
        check(lost, {0: PLAN})
    check(lost, {0: PLAN}, complete=False)
    with pytest.raises(AssertionError, match="received twice"):
        check(History([*history.entries, history.entries[-1]]), {0: PLAN})
    check(History([*history.entries, history.entries[-1]]), {0: PLAN}, repeats=True)
    with pytest.raises(AssertionError, match="different steps"):
        check(History(history.entries[:-1]), {0: PLAN}, complete=False)


def test_a_replaced_item_must_be_the_named_one() -> None:
    history = good()
    entry = history.entries[0]
    other = next(item for item in range(30) if item not in entry.ids)
    history.entries[0] = replace(entry, replaced=(other, *entry.replaced[1:]), payloads=(payload_of(other), *entry.payloads[1:]))
    check(history, {0: PLAN})
    history.entries[0] = replace(entry, replaced=(other, *entry.replaced[1:]))
    with pytest.raises(AssertionError, match="it should be item"):
        check(history, {0: PLAN})


@pytest.mark.slow
def test_a_real_run_over_a_ledger_set_passes(tmp_path: Path) -> None:
    pack(ledger_spec(drives=3, frames=9), tmp_path / "set", PackOptions(), None)
    dataset = headway.open(str(tmp_path / "set"))
    loader = headway.DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
    history = History()
    for step, batch in enumerate(loader):
        valid = [bool(value) for value in batch["valid"]]
        texts = [row[0] if ok else "" for row, ok in zip(batch[SENSOR]["text"], valid, strict=True)]
        history.entries.append(
            Entry(
                rank=0,
                epoch=0,
                step=step,
                slots=tuple(batch["slot"].tolist()),
                ids=tuple(batch["id"].tolist()),
                valid=tuple(valid),
                replaced=tuple(batch["replaced"].tolist()),
                payloads=tuple(texts),
            )
        )
    view = dataset.view
    assert view.info.items == LedgerSource(drives=3, frames=9).items
    check(history, {0: Plan(view.info, Shuffled(), seed=0, epoch=0, segments=[(4, 0)])})


def test_payloads_differ() -> None:
    assert len({payload_of(item) for item in range(500)}) == 500
    assert [check_payload(payload_of(item)) for item in range(200)] == list(range(200))
