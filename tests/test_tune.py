"""kgen tune without a GPU: what is tried, what is chosen from given times, and what is written."""

from __future__ import annotations

import math
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from kgen.bench.cells import Cell
from kgen.bench.inputs import draw
from kgen.bench.segments import Ran
from kgen.bench.subject import subject_of
from kgen.cli import main
from kgen.commands.tune import USUAL_WIDTHS
from kgen.errors import KgenError
from kgen.load import load, load_text
from kgen.lower import lower
from kgen.schedule import OpSchedule, schedule
from kgen.spec import LARGEST_TILE, TUNED_RANGES, TUNED_WIDTHS
from kgen.tiles import CHUNKED, Tile, tile_rule
from kgen.tune import measuring
from kgen.tune.building import build
from kgen.tune.candidates import candidates
from kgen.tune.choose import Times, choose
from kgen.tune.entries import entries_of
from kgen.tune.launching import Launching
from kgen.tune.measuring import Item, Measuring, columns_of, rows_of, slices
from kgen.tune.outcome import outcome
from kgen.tune.plans import Candidate, Direction, directions_of, plan_by

ROOT = Path(__file__).parent.parent
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
NOTE = "found by `kgen tune` on a GPU"
MARGIN = 0.04


def text_of(name: str, tuning: str = "") -> str:
    """A shipped spec with another tuning, at its end."""
    text = (ROOT / "specs" / f"{name}.yaml").read_text("utf-8").partition("\ntuning:")[0]
    return f"{text}\n{tuning}" if tuning else text


def plan_of(text: str) -> OpSchedule:
    return schedule(lower(load_text(text, "specs/it.yaml")))


def direction_of(name: str, which: str = "forward", tuning: str = "") -> Direction:
    """A direction of a shipped op."""
    found = directions_of(plan_of(text_of(name, tuning)))
    return next(each for each in found if each.name == which)


def even_times(
    direction: Direction, widths: Sequence[int] = USUAL_WIDTHS
) -> dict[int, dict[Candidate, float]]:
    """100 microseconds for every candidate."""
    return {words: dict.fromkeys(candidates(direction, words), 100.0) for words in widths}


# What is tried.


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_candidates_are_plans_that_the_op_can_run(path: Path) -> None:
    for direction in directions_of(schedule(lower(load(path)))):
        for words in TUNED_WIDTHS:
            found = candidates(direction, words)
            assert len(set(found)) == len(found)
            assert found[0] == plan_by(direction.rule, words, direction.is_split)
            assert plan_by(direction.tiles, words, direction.is_split) in found
            for plan in found:
                _assert_is_plan(plan, direction, words)


def _assert_is_plan(plan: Candidate, direction: Direction, words: int) -> None:
    long = "split" if direction.is_split else "streaming"
    assert plan.schedule in ("resident", long, *(["reload"] if direction.can_reload else []))
    assert plan.is_long or plan.block == words
    assert plan.schedule != "streaming" or (plan.rows == 1 and plan.block <= words)
    assert plan.rows * plan.block <= LARGEST_TILE
    assert direction.is_split or plan.programs == 1
    is_walked = plan.schedule == "streaming" and not direction.has_chunks
    assert direction.is_split or is_walked or plan.stages == 1
    values = {
        "rows": plan.rows,
        "warps": plan.warps,
        "stages": plan.stages,
        "programs": plan.programs,
    }
    for name, value in values.items():
        least, most = TUNED_RANGES[name]
        assert least <= value <= most
    assert all(math.log2(value).is_integer() for value in (plan.rows, plan.warps, plan.block))


def test_there_is_a_choice_for_every_usual_width() -> None:
    for name in ("rmsnorm", "softmax", "geglu"):
        for which in ("forward", "backward"):
            direction = direction_of(name, which)
            assert all(len(candidates(direction, words)) >= 3 for words in USUAL_WIDTHS)


def test_chunks_with_a_program_each_are_tried_smaller_and_for_narrower_rows() -> None:
    for name, least, smallest in (("geglu", 4096, 1024), ("softmax", 8192, 1024)):
        direction = direction_of(name)
        long = {w: [p for p in candidates(direction, w) if p.is_long] for w in TUNED_WIDTHS}
        assert min(words for words, found in long.items() if found) == least
        assert min(plan.block for found in long.values() for plan in found) == smallest


def test_rows_to_measure_fill_the_memory_bus() -> None:
    for words in USUAL_WIDTHS:
        for dtype in ("bfloat16", "float64"):
            columns = columns_of(words, dtype)
            assert 2**25 <= rows_of(columns) * columns <= 2**26
    assert columns_of(512, "bfloat16") == 512 and columns_of(512, "float64") == 256


def test_slices_hold_every_plan_once() -> None:
    item = Item("rmsnorm", 512, "forward")
    assert [(each.first, each.last) for each in slices([item], lambda _: 9)] == [
        (0, 4),
        (4, 8),
        (8, 12),
    ]


# What is launched.

SMALL_PLANS = {
    "forward": (
        Candidate("resident", 2, 128, 2),
        Candidate("reload", 1, 128, 4),
        Candidate("streaming", 1, 64, 2),
    ),
    "sums": (
        Candidate("resident", 2, 128, 2, 3, 2),
        Candidate("reload", 1, 128, 4),
        Candidate("split", 2, 64, 2, 2, 1),
    ),
}


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("rmsnorm", "forward"),
        ("rmsnorm", "backward"),
        ("rmsnorm", "double_backward"),
        ("softmax", "forward"),
        ("softmax", "backward"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_plan_is_launched_and_none_is_remembered(
    tmp_path: Path, name: str, which: str, dtype: str
) -> None:
    """All kernels are there, also those that the spec's own tiles leave out."""
    tuning = "tuning: {forward: {2048: {schedule: streaming}}}\n"
    is_double = which == "double_backward"
    text = text_of(name, f"double_backward: true\n{tuning}" if is_double else tuning)
    spec = load_text(text, f"specs/{name}.yaml")
    build([spec], tmp_path)
    subject = subject_of(spec, tmp_path)
    columns = 128 if dtype == "float32" else 64
    arguments = draw(subject.row_op, Cell(name, 6, columns, dtype), "cpu")
    launching = Launching(subject, arguments)
    calls = subject.function.__globals__["calls"]
    is_sum = which != "forward" and name == "rmsnorm"
    first = None
    size = 8 if dtype == "float64" else 4
    launching.start(which)
    for _ in range(2):
        for plan in SMALL_PLANS["sums" if is_sum else "forward"]:
            calls.clear()
            found = launching.results(which, launching.run(which, plan, size))
            assert calls[f"{which}.{plan.schedule}"] == 1, (plan, dict(calls))
            first = first or found
            assert found.keys() == first.keys()
            for key, tensor in found.items():
                torch.testing.assert_close(tensor, first[key], rtol=1e-4, atol=1e-5)
    launching.start("forward")
    assert "resident" in str(subject.function.__globals__["forward_plan"](32, torch.float32, 4))


def test_a_plan_with_other_results_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = on_cpu("softmax", tmp_path, monkeypatch)
    run = Launching.run

    def wrong(self: Launching, which: str, plan: Candidate, size: int) -> object:
        found = run(self, which, plan, size)
        if plan.warps == 1:
            raise RuntimeError("out of resource")
        return found * 2 if plan.rows == 8 else found

    monkeypatch.setattr(Launching, "run", wrong)
    found = ready.times(Item("softmax", 64, "forward"), FakeClock())  # type: ignore[arg-type]
    tried = candidates(direction_of("softmax"), 64)
    refused = {each.plan: each.why for each in ready.refused}
    assert set(found) | set(refused) == set(tried) and not set(found) & set(refused)
    assert {plan for plan in tried if plan.warps == 1} <= set(refused)
    assert any(why == "RuntimeError: out of resource" for why in refused.values())
    twice = [why for plan, why in refused.items() if plan.rows == 8 and plan.warps != 1]
    assert twice and all("where the rule's plan has" in why for why in twice)


def test_a_process_launches_a_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = pickle.loads(pickle.dumps(on_cpu("softmax", tmp_path, monkeypatch).fresh()))
    launched = []
    monkeypatch.setattr(Launching, "run", lambda self, which, plan, size: launched.append(plan))
    items = slices([Item("softmax", 64, "backward")], ready.count)
    for item in items:
        ready.once(item)
    assert tuple(launched) == candidates(direction_of("softmax", "backward"), 64)


# What is chosen.


def test_nothing_is_chosen_where_nothing_wins() -> None:
    for name in ("rmsnorm", "softmax", "geglu"):
        for which in ("forward", "backward"):
            direction = direction_of(name, which)
            choice = choose(direction, even_times(direction), MARGIN)
            assert choice.tiles == direction.rule
            assert [verdict.words for verdict in choice.verdicts] == list(USUAL_WIDTHS)


@pytest.mark.parametrize(("time", "wins"), [(95.9, True), (96.1, False)])
def test_a_tile_has_to_win_by_the_margin(time: float, wins: bool) -> None:
    direction = direction_of("rmsnorm")
    times = even_times(direction)
    plan = Candidate("resident", 2, 2048, 8)
    times[2048][plan] = time
    choice = choose(direction, times, MARGIN)
    assert (choice.tiles.tile(2048) == plan.tile) is wins
    assert entries_of(direction, choice.tiles) == (
        {"2048": {"rows": 2, "warps": 8}} if wins else {}
    )
    verdict = choice.verdicts[USUAL_WIDTHS.index(2048)]
    assert (verdict.best, verdict.best_time, verdict.rule_time) == (plan, time, 100.0)
    assert verdict.chosen_time == (time if wins else 100.0)


def test_a_boundary_moves_where_its_widths_win_together() -> None:
    direction = direction_of("rmsnorm")
    assert (direction.rule.reloaded, direction.rule.whole_words) == ((16384, 32768, 65536), 65536)
    times = even_times(direction)
    for words in (16384, 32768):
        times[words][Candidate("resident", 1, words, 32)] = 80.0
    tiles = choose(direction, times, MARGIN).tiles
    assert (tiles.reloaded, tiles.whole_words) == ((65536,), 65536)
    assert entries_of(direction, tiles) == {
        "16384": {"warps": 32},
        "32768": {"schedule": "resident", "rows": 1, "warps": 32},
    }


def test_a_width_stays_in_registers_beside_others_that_are_read_again() -> None:
    direction = direction_of("rmsnorm")
    times = even_times(direction)
    times[32768][Candidate("resident", 1, 32768, 32)] = 80.0
    for plan in times[16384]:
        times[16384][plan] = 100.0 if plan.schedule == "reload" else 130.0
    tiles = choose(direction, times, MARGIN).tiles
    assert (tiles.reloaded, tiles.whole_words) == ((16384, 65536), 65536)
    assert entries_of(direction, tiles) == {
        "16384": {"schedule": "reload", "rows": 1, "warps": 16},
        "32768": {"schedule": "resident", "rows": 1, "warps": 32},
    }


CHUNKED_WIDTHS = [words for words in TUNED_WIDTHS if words > CHUNKED.whole_words]


def test_rows_in_chunks_share_the_chunk_that_is_best_for_all() -> None:
    direction = direction_of("geglu")
    times = even_times(direction)
    wide, narrow = Candidate("streaming", 1, 2048, 8), Candidate("streaming", 1, 1024, 4)
    for words in CHUNKED_WIDTHS:
        times[words][wide] = 80.0
    times[16384][narrow] = 77.0
    tiles = choose(direction, times, MARGIN).tiles
    assert tiles.streaming == wide.tile
    assert entries_of(direction, tiles) == {"streaming": {"block": 2048, "warps": 8}}


def test_chunks_that_are_loaded_together_win_too() -> None:
    direction = direction_of("rmsnorm")
    times = even_times(direction)
    together = Candidate("streaming", 1, 16384, 32, stages=4)
    for words in (131072, 262144):
        times[words][together] = 80.0
    tiles = choose(direction, times, MARGIN).tiles
    assert tiles.streaming == together.tile
    written = {"streaming": {"block": 16384, "stages": 4}}
    assert entries_of(direction, tiles) == written
    assert str(together) == "streaming 1 x 16384, 32 warps, 4 stages"


@pytest.mark.parametrize(("time", "wins"), [(76.7, True), (76.9, False)])
def test_a_chunk_of_a_width_wins_by_the_margin_over_that_of_the_direction(
    time: float, wins: bool
) -> None:
    direction = direction_of("geglu")
    times = even_times(direction)
    wide, narrow = Candidate("streaming", 1, 2048, 8), Candidate("streaming", 1, 1024, 4)
    for words in CHUNKED_WIDTHS:
        times[words][wide] = 80.0
    times[65536][narrow] = time
    choice = choose(direction, times, MARGIN)
    assert choice.tiles.chunks == (((65536, narrow.tile),) if wins else ())
    own = {"schedule": "streaming", "block": 1024, "warps": 4}
    assert entries_of(direction, choice.tiles) == {
        **({"65536": own} if wins else {}),
        "streaming": {"block": 2048, "warps": 8},
    }
    verdict = next(each for each in choice.verdicts if each.words == 65536)
    assert verdict.chosen == (narrow if wins else wide)


def test_a_width_takes_the_rule_again_where_that_wins() -> None:
    """The chunk of the rule is another than the direction's: its widths have to say it."""
    direction = direction_of("geglu")
    times = even_times(direction)
    wide = Candidate("streaming", 1, 2048, 8)
    for words in CHUNKED_WIDTHS[:-1]:
        times[words][wide] = 80.0
    times[262144][wide] = 130.0
    tiles = choose(direction, times, MARGIN).tiles
    assert tiles.streaming == wide.tile
    assert tiles.chunks == ((262144, direction.rule.streaming),)


def test_a_width_takes_a_tile_of_the_split() -> None:
    direction = direction_of("rmsnorm", "backward")
    times = even_times(direction)
    split = Candidate("split", 4, 2048, 8, 3, 1)
    times[262144][split] = 90.0
    tiles = choose(direction, times, MARGIN).tiles
    assert (tiles.split, tiles.chunks) == (direction.rule.split, ((262144, split.tile),))
    assert entries_of(direction, tiles) == {
        "262144": {"schedule": "split", "rows": 4, "warps": 8, "stages": 3, "programs": 1}
    }


def test_chunks_that_were_not_measured_stay() -> None:
    entries = (
        "    65536: {schedule: streaming, block: 4096, warps: 16}\n"
        "    131072: {schedule: streaming, block: 2048}\n"
        "    streaming: {block: 8192, warps: 16}\n"
    )
    text = text_of("geglu", f"tuning:\n  forward:\n{entries}")
    direction = direction_of("geglu", tuning=f"tuning:\n  forward:\n{entries}")
    times = even_times(direction, [32768])
    times[32768][Candidate("streaming", 1, 8192, 16)] = 80.0
    assert outcome(plan_of(text), text, {"forward": times}, MARGIN, NOTE).text == text
    times[32768][Candidate("streaming", 1, 2048, 8)] = 60.0
    found = outcome(plan_of(text), text, {"forward": times}, MARGIN, NOTE)
    own = "    32768: {schedule: streaming, block: 2048, warps: 8}\n"
    assert found.text.endswith(f"  forward:\n{own}{entries}")


def test_a_sum_takes_the_tile_of_the_split() -> None:
    direction = direction_of("rmsnorm", "backward")
    times = even_times(direction)
    split = Candidate("split", 1, 512, 2, 3, 8)
    for words in (32768, 65536, 131072, 262144):
        times[words][split] = 90.0
    tiles = choose(direction, times, MARGIN).tiles
    assert (tiles.split, tiles.streaming) == (Tile(512, 1, 2, 3, 8), direction.rule.streaming)
    assert list(entries_of(direction, tiles)) == ["split"]


def test_what_was_not_measured_stays() -> None:
    tuning = "tuning: {forward: {512: {rows: 4}, 32768: {schedule: streaming}}}\n"
    direction = direction_of("rmsnorm", tuning=tuning)
    times = even_times(direction, [16384, 65536])
    assert choose(direction, times, MARGIN).tiles == direction.tiles
    fast = Candidate("reload", 1, 16384, 8)
    times[16384][fast] = 50.0
    times[65536][Candidate("reload", 1, 65536, 32)] = 50.0  # beyond 32768, which is in chunks
    tiles = choose(direction, times, MARGIN).tiles
    assert (tiles.tile(16384), tiles.tile(512)) == (fast.tile, Tile(512, 4, 1))
    assert tiles.whole_words == 16384


def test_a_width_without_a_time_of_the_rule_stays() -> None:
    direction = direction_of("rmsnorm")
    times = even_times(direction)
    del times[2048][plan_by(direction.rule, 2048, False)]
    times[2048][Candidate("resident", 2, 2048, 8)] = 1.0
    choice = choose(direction, times, MARGIN)
    assert choice.tiles == direction.rule
    assert 2048 not in [verdict.words for verdict in choice.verdicts]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("name", "which"), [("rmsnorm", "forward"), ("rmsnorm", "backward"), ("softmax", "backward")]
)
def test_what_is_chosen_can_be_written(name: str, which: str, seed: int) -> None:
    """Random times: the entries make the tiles, and each departure from the rule is paid for."""
    direction = direction_of(name, which)
    noise = torch.Generator().manual_seed(seed)
    times: Times = {
        words: {plan: 60 + 40 * float(torch.rand((), generator=noise)) for plan in found}
        for words, found in even_times(direction).items()
    }
    found = outcome(plan_of(text_of(name)), text_of(name), {which: times}, MARGIN, NOTE)
    tiles = tile_rule(plan_of(found.text))[which]
    (verdicts,) = found.verdicts.values()
    for verdict in verdicts:
        assert plan_by(tiles, verdict.words, direction.is_split) == verdict.chosen
    won = sum(math.log(v.rule_time / v.chosen_time) for v in verdicts)
    changed = sum(v.chosen != v.rule for v in verdicts)
    assert won >= -math.log(1 - MARGIN) * changed > 0
    again = outcome(plan_of(found.text), found.text, {which: times}, MARGIN, NOTE)
    assert again.text == found.text


# What is written.

HEAD = text_of("softmax").rstrip("\n")


def rewritten(text: str, **fast: float) -> str:
    """The text after a run in which some plans took other times than 100 microseconds.

    ``forward_512_2x2=80`` is a tile of 2 rows and 2 warps for rows of 512 words.
    """
    plan = plan_of(text)
    times: dict[str, dict[int, dict[Candidate, float]]] = {}
    for direction in directions_of(plan):
        times[direction.name] = even_times(direction)
    for key, time in fast.items():
        which, words, shape = key.rsplit("_", 2)
        rows, warps = map(int, shape.split("x"))
        found = times[which][int(words)]
        found |= {p: time for p in found if (p.rows, p.warps, p.rank) == (rows, warps, 0)}
    return outcome(plan, text, times, MARGIN, NOTE).text


def test_a_tuning_comes_to_the_end() -> None:
    text = rewritten(HEAD + "\n", forward_512_1x2=80, backward_1024_2x4=80, forward_4096_1x8=80)
    assert text == HEAD + (
        "\n\ntuning:                                    # found by `kgen tune` on a GPU\n"
        "  forward:\n"
        "    512: {rows: 1, warps: 2}\n"
        "    4096: {warps: 8}\n"
        "  backward:\n"
        "    1024: {rows: 2, warps: 4}\n"
    )
    assert rewritten(text) == HEAD + "\n"


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n# the end\n", "\n...\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_rest_stays_byte_for_byte(end: str, newline: str) -> None:
    text = (HEAD + end).replace("\n", newline)
    assert rewritten(text) == text
    made = rewritten(text, forward_512_1x2=80)
    lines = [
        "tuning:                                    # found by `kgen tune` on a GPU",
        "  forward:",
        "    512: {rows: 1, warps: 2}",
        "",
    ]
    place = made.index("tuning:")
    block = newline.join(lines)
    assert made[place : place + len(block)] == block
    assert made[:place] == HEAD.replace("\n", newline) + 2 * newline
    assert made[place + len(block) :].strip() == end.strip()


BEFORE = """\
op: it
summary: Softmax.
source: an example
tuning:          # by hand
  # Few rows at a time.
  forward:
    # as the rule has it
    64: {rows: 16}
    # no longer fast
    512: {rows: 4}
    2048: {warps: 8}       # still fast
    4096:
      warps: 16
    # the last
    streaming: {block: 4096, warps: 8}
  backward:
    1024: {rows: 2}

# What it takes.
inputs: {x: matrix}    # rows
outputs: {y: x}
forward: |
  e = exp(x - max(x))
  y = e / sum(e)
backward: derive
reference: |
  return torch.softmax(x, dim=-1)
"""
AFTER = """\
op: it
summary: Softmax.
source: an example
tuning:                                    # found by `kgen tune` on a GPU
  # Few rows at a time.
  forward:
    # as the rule has it
    64: {rows: 16}
    1024: {warps: 4}
    2048: {warps: 8}       # still fast
    4096: {warps: 8}

# What it takes.
inputs: {x: matrix}    # rows
outputs: {y: x}
forward: |
  e = exp(x - max(x))
  y = e / sum(e)
backward: derive
reference: |
  return torch.softmax(x, dim=-1)
"""


def test_lines_that_still_hold_stay_as_they_are() -> None:
    fast = {"forward_1024_1x4": 80.0, "forward_2048_1x8": 80.0, "forward_4096_1x8": 80.0}
    text = rewritten(BEFORE, **fast)
    assert text == AFTER
    assert rewritten(text, **fast) == text


def test_directions_that_were_not_measured_stay() -> None:
    plan = plan_of(BEFORE)
    forward = directions_of(plan)[0]
    times = {"forward": even_times(forward, [2048])}
    text = outcome(plan, BEFORE, times, MARGIN, NOTE).text
    gone = "    2048: {warps: 8}       # still fast\n"
    assert text.replace(f"tuning:{'':36}# {NOTE}\n", "tuning:          # by hand\n") == (
        BEFORE.replace(gone, "")
    )


def test_flow_style_is_written_as_lines() -> None:
    before = HEAD + "\ntuning: {forward: {512: {rows: 4}, 64: {rows: 8}}}\n"
    assert rewritten(before, forward_1024_1x4=80) == HEAD + (
        "\ntuning:                                    # found by `kgen tune` on a GPU\n"
        "  forward:\n"
        "    64: {rows: 8}\n"
        "    1024: {warps: 4}\n"
    )


def test_a_layout_that_takes_no_entry_is_left_alone() -> None:
    text = (
        "{op: it, summary: Softmax., source: an example, inputs: {x: matrix}, outputs: {y: x},\n"
        "forward: 'y = x * 2', backward: none, reference: 'return x * 2'}\n"
    )
    assert rewritten(text) == text
    with pytest.raises(KgenError, match="its tuning cannot be written"):
        rewritten(text, forward_512_1x2=80)


# The command.


class FakeClock:
    """Calls take 100 microseconds, those of four warps 50."""

    def rounds(self, calls: Sequence[Callable[[], object]], count: int) -> list[list[list[Ran]]]:
        for call in calls:
            call()
        plans = [call.args[1] for call in calls]  # type: ignore[attr-defined]
        return [
            [[Ran("kernel", 0.0, 50.0 if plan.warps == 4 else 100.0)] for _ in range(count)]
            for plan in plans
        ]


def on_cpu(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Measuring:
    """What measures an op, in the interpreter."""
    monkeypatch.setattr(measuring, "MOST_ELEMENTS", 4096)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    spec = load_text(text_of(name), f"specs/{name}.yaml")
    build([spec], folder)
    return Measuring({name: spec}, folder, "float32", device="cpu")


@pytest.fixture
def kgen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "specs", "specs")
    yield lambda *words: CliRunner().invoke(main, ["tune", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch"], "there is no spec 'nosuch'"),
        (["rmsnorm", "--widths", "500"], "--widths is '500'; it takes powers of two from 64"),
        (["rmsnorm", "--widths", ""], "--widths is ''"),
        (["rmsnorm", "--directions", "up"], "--directions is 'up'; it takes forward, backward,"),
        (["rmsnorm", "--dtype", "int8"], "Invalid value for '--dtype'"),
        (["rmsnorm", "--margin", "99"], "Invalid value for '--margin'"),
    ],
)
def test_bad_usage_ends_with_2(kgen: Callable[..., Result], words: list[str], message: str) -> None:
    result = kgen(*words)
    assert result.exit_code == 2 and message in result.output, result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured(kgen: Callable[..., Result]) -> None:
    result = kgen("rmsnorm")
    assert result.exit_code == 2
    assert result.output.startswith("error: kgen tune measures on a GPU: PyTorch finds no GPU")


def test_without_pytorch_it_says_so(
    kgen: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = kgen("rmsnorm")
    assert result.exit_code == 2
    assert result.output.startswith("error: kgen tune needs torch, which is not installed")


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter and a fake clock: everything but the measuring itself."""
    monkeypatch.setattr("kgen.bench.environment.gpu_problem", lambda: None)
    monkeypatch.setattr("kgen.bench.kernel_time.Clock", FakeClock)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(measuring, "MOST_ELEMENTS", 4096)
    monkeypatch.setattr(Measuring, "gpu", property(lambda self: "Some GPU"))

    def drawn(row_op: object, cell: Cell, device: str) -> object:
        return draw(row_op, replace(cell, rows=min(cell.rows, 8)), "cpu")  # type: ignore[arg-type]

    monkeypatch.setattr(measuring, "draw", drawn)


@pytest.mark.usefixtures("fake_gpu")
def test_a_run_writes_what_wins_and_build_follows(kgen: Callable[..., Result]) -> None:
    path = Path("specs/softmax.yaml")
    path.write_text(text_of("softmax"))
    before = path.read_bytes()
    words = ["softmax", "--widths", "64,128", "--directions", "forward"]
    dry = kgen(*words, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert path.read_bytes() == before
    lines = dry.output.splitlines()
    assert lines[0] == "softmax, bfloat16: microseconds"
    assert lines[1].split() == ["direction", "width", "rule", "best", "best", "plan", "chosen"]
    assert lines[2].split()[:4] == ["forward", "64", "100.0", "50.0"]
    assert lines[2].endswith("4 warps  the best") and "updated" not in dry.output
    result = kgen(*words)
    assert result.exit_code == 0, result.output
    assert result.output == f"{dry.output}  updated specs/softmax.yaml\n"
    text = path.read_text()
    note = (
        "tuning:                                    # found by `kgen tune` on Some GPU, bfloat16\n"
    )
    assert text.startswith(before.decode()) and note in text
    assert load(path).tuning[0].widths[0][1].value("warps", 0) == 4
    assert "unchanged specs/softmax.yaml" in kgen(*words).output
    built = CliRunner().invoke(main, ["build", "specs/softmax.yaml"])
    assert built.exit_code == 0
    assert ", 4),\n    128: (" in Path("generated/softmax/op.py").read_text()


@pytest.mark.usefixtures("fake_gpu")
def test_a_run_that_ends_early_says_what_is_missing(kgen: Callable[..., Result]) -> None:
    before = Path("specs/softmax.yaml").read_bytes()
    result = kgen("softmax", "--widths", "64", "--time-limit", "0")
    assert result.exit_code == 1, result.output
    assert "the time was over before 2 widths, the first of which is softmax forward at 64" in (
        result.output
    )
    assert Path("specs/softmax.yaml").read_bytes() == before


@pytest.mark.usefixtures("fake_gpu")
def test_an_op_without_the_direction_is_nothing_to_tune(kgen: Callable[..., Result]) -> None:
    result = kgen("rmsnorm_int8", "--directions", "backward")
    assert result.exit_code == 2 and "none of the ops has these directions" in result.output


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_widths_on_a_gpu(kgen: Callable[..., Result]) -> None:
    words = ["rmsnorm", "--widths", "1024,16384", "--dry-run", "--jobs", "2"]
    result = kgen(*words)
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) >= 6
