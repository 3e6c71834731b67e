"""What the key ``tuning`` of a spec does to the tiles of the rule, and to the tables in op.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from kgen.build import render_op
from kgen.load import load_text
from kgen.lower import lower
from kgen.schedule import OpSchedule, schedule
from kgen.spec import TUNED_WIDTHS
from kgen.tiles import Tile, Tiles, limits, planned, tile_rule, untuned
from kgen.traffic import launch

SPECS = Path(__file__).parent.parent / "specs"


def plan_of(name: str, tuning: str = "", double: bool = False) -> OpSchedule:
    """The schedule of a shipped op with another tuning."""
    text = (SPECS / f"{name}.yaml").read_text("utf-8").partition("\ntuning:")[0]
    text += "\ndouble_backward: true\n" if double else "\n"
    return schedule(lower(load_text(text + tuning, f"specs/{name}.yaml")))


def tuned(name: str, direction: str, *lines: str) -> Tiles:
    """The tiles of a direction with these lines under it."""
    entries = "".join(f"    {line}\n" for line in lines)
    plan = plan_of(name, f"tuning:\n  {direction}:\n{entries}", direction == "double_backward")
    return tile_rule(plan)[direction]


def rule(name: str, direction: str = "forward") -> Tiles:
    return untuned(plan_of(name, double=direction == "double_backward"))[direction]


def test_what_is_not_said_stays() -> None:
    before, after = rule("rmsnorm"), tuned("rmsnorm", "forward", "8192: {warps: 4}")
    assert before.tile(8192) == Tile(8192, 1, 16)
    assert after.tile(8192) == Tile(8192, 1, 4)
    others = [[tile for tile in tiles.whole if tile.words != 8192] for tiles in (before, after)]
    assert others[0] == others[1]
    assert (after.resident_words, after.streaming) == (before.resident_words, before.streaming)


@pytest.mark.parametrize("direction", ["backward", "double_backward"])
def test_the_other_directions_stay(direction: str) -> None:
    plan = plan_of("rmsnorm", f"tuning: {{{direction}: {{512: {{rows: 8}}}}}}\n", double=True)
    after, before = tile_rule(plan), untuned(plan)
    assert [name for name in after if after[name] != before[name]] == [direction]


def test_every_value_of_a_group() -> None:
    line = "2048: {rows: 1, warps: 2, stages: 5, programs: 7}"
    assert tuned("rmsnorm", "backward", line).tile(2048) == Tile(2048, 1, 2, 5, 7)
    split = tuned("rmsnorm", "backward", "split: {rows: 4, stages: 2}").split
    assert split == Tile(2048, 4, 4, 2, 2)
    split = tuned("rmsnorm", "backward", "split: {block: 512, warps: 2, programs: 8}").split
    assert split == Tile(512, 1, 2, 4, 8)


def test_chunks() -> None:
    tiles = tuned("rmsnorm", "forward", "streaming: {block: 2048}")
    assert tiles.streaming == Tile(2048, 1, rule("rmsnorm").streaming.warps)
    assert tuned("rmsnorm", "backward", "streaming: {warps: 1}").streaming == Tile(4096, 1, 1)


@pytest.mark.parametrize(
    ("lines", "resident", "whole"),
    [
        (["512: {rows: 1}"], 8192, 65536),
        (["16384: {schedule: streaming}"], 8192, 8192),
        (["2048: {schedule: streaming}"], 1024, 1024),
        (["65536: {schedule: streaming}"], 8192, 32768),
        (["32768: {schedule: resident}"], 32768, 65536),
        (["65536: {schedule: resident}"], 65536, 65536),
        (["1024: {schedule: reload}"], 512, 65536),
        (["128: {schedule: reload}", "2048: {schedule: streaming}"], 64, 1024),
        (["4096: {schedule: reload}", "16384: {schedule: streaming}"], 2048, 8192),
        (["262144: {schedule: streaming}", "64: {schedule: resident}"], 8192, 65536),
    ],
)
def test_a_schedule_reaches_as_far_as_it_must(lines: list[str], resident: int, whole: int) -> None:
    assert (rule("rmsnorm").resident_words, rule("rmsnorm").whole_words) == (8192, 65536)
    tiles = tuned("rmsnorm", "forward", *lines)
    assert (tiles.resident_words, tiles.whole_words) == (resident, whole)
    assert [tile.words for tile in tiles.whole] == [w for w in TUNED_WIDTHS if w <= whole]


def test_longer_rows_than_the_rule_keeps() -> None:
    assert rule("rmsnorm", "backward").whole_words == 16384
    line = "32768: {schedule: reload, rows: 1, warps: 32}"
    tiles = tuned("rmsnorm", "backward", line)
    assert (tiles.resident_words, tiles.whole_words) == (8192, 32768)
    assert tiles.whole[-1] == Tile(32768, 1, 32, 1, 1)


def test_kernels_that_no_width_takes_are_left_out_and_the_rule_does_not_forget_them() -> None:
    """The rule asks whether rows can be read again; the answer stays when they no longer are."""
    tuning = "tuning: {forward: {16384: {schedule: streaming}}}\n"
    plan = planned(plan_of("rmsnorm", tuning).row_op)
    assert [kernel.name for kernel in plan.forward] == [
        "rmsnorm_forward_resident",
        "rmsnorm_forward_streaming",
    ]
    assert tile_rule(plan) == tile_rule(plan_of("rmsnorm", tuning))
    assert launch(plan, "forward", 8193, 4).schedule == "streaming"
    assert launch(plan, "forward", 8192, 4).schedule == "resident"


def test_the_tables_of_the_wrapper() -> None:
    plan = plan_of(
        "rmsnorm",
        "tuning:\n"
        "  forward: {1024: {rows: 4, warps: 8}, 16384: {schedule: streaming},\n"
        "    streaming: {block: 2048, warps: 4}}\n"
        "  backward: {16384: {schedule: split}, 2048: {programs: 5},\n"
        "    split: {block: 512, rows: 2, warps: 2, stages: 6, programs: 3},\n"
        "    streaming: {warps: 2}}\n",
    )
    wrapper = render_op(plan.row_op.spec)["rmsnorm/op.py"]
    for text in (
        "\nFORWARD_RESIDENT_WORDS = 8192\nFORWARD_STREAMING_BLOCK = 2048\n",
        "\n    1024: (4, 8),\n",
        "    if words > FORWARD_RESIDENT_WORDS:\n",
        'return Plan("streaming", 1, FORWARD_STREAMING_BLOCK * 16 // compute.itemsize**2, 4)',
        "\nBACKWARD_RESIDENT_WORDS = 8192\nBACKWARD_WIDEST = {2: 8192, 4: 8192, 8: 4096}\n",
        "\nBACKWARD_STREAMING_BLOCK = 4096\n",
        "\nBACKWARD_SPLIT_BLOCK = 512\n",
        "\n    2048: (2, 4, 3, 5),\n",
        '        return Plan("split", 2, BACKWARD_SPLIT_BLOCK * 4 // compute.itemsize, 2, 6, 3)\n',
    ):
        assert text in wrapper, text
    assert "RELOAD" not in wrapper and "_reload" not in wrapper
    assert "_reload" not in render_op(plan.row_op.spec)["rmsnorm/kernels.py"]


# Rows of wide elements.


@pytest.mark.parametrize(
    ("name", "direction", "widest"),
    [
        ("rmsnorm", "forward", {2: 65536, 4: 32768, 8: 8192}),  # reads one matrix
        ("softmax", "backward", {2: 65536, 4: 16384, 8: 8192}),  # two
        ("rmsnorm", "backward", {2: 16384, 4: 8192, 8: 4096}),  # two, and sums up a row
        ("layernorm", "backward", {2: 8192, 4: 8192, 8: 4096}),
        ("polynorm", "backward", {2: 4096, 4: 4096, 8: 4096}),
    ],
)
def test_wide_elements_have_narrower_tiles(
    name: str, direction: str, widest: dict[int, int]
) -> None:
    assert limits(plan_of(name), direction) == widest


def test_a_condition_for_each_element_takes_no_registers() -> None:
    tuning = "tuning: {forward: {32768: {schedule: resident, rows: 1, warps: 32}}}\n"
    widest = limits(plan_of("masked_softmax", tuning), "forward")
    assert widest == limits(plan_of("softmax"), "forward") == {2: 32768, 4: 32768, 8: 8192}


def test_tuned_rows_of_wide_elements_are_no_wider_than_the_rule_has_them() -> None:
    plan = plan_of("rmsnorm", "tuning: {forward: {65536: {schedule: resident}}}\n")
    assert limits(plan, "forward") == {2: 65536, 4: 32768, 8: 8192}
    plan = plan_of("rmsnorm", "tuning: {forward: {2048: {schedule: streaming}}}\n")
    assert limits(plan, "forward") == {2: 1024, 4: 1024, 8: 1024}
    assert "FORWARD_WIDEST" not in render_op(plan.row_op.spec)["rmsnorm/op.py"]


def test_the_wrapper_looks_at_all_matrices_and_at_nothing_else() -> None:
    for name, matrices in (("rmsnorm", "x"), ("add_layernorm", "x, residual"), ("gelu", None)):
        wrapper = render_op(plan_of(name).row_op.spec)[f"{name}/op.py"]
        call = f"self.itemsize = _itemsize(self.compute, {matrices})\n"
        assert (call in wrapper) == (matrices is not None)
