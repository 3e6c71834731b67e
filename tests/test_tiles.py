"""What the key ``tuning`` of a spec does to the tiles of the rule, and to the tables in op.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from kgen.build import render_op
from kgen.load import load_text
from kgen.lower import lower
from kgen.schedule import OpSchedule, schedule
from kgen.spec import TUNED_WIDTHS
from kgen.tiles import Tile, Tiles, limits, planned, tile_rule, untuned
from kgen.traffic import launch
from small_op import built_op

SPECS = Path(__file__).parent.parent / "specs"


def widest_of(plan: OpSchedule, direction: str) -> dict[int, int]:
    return limits(plan, direction, tile_rule(plan)[direction])


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
    assert before.tile(8192) == Tile(8192, 1, 8)
    assert after.tile(8192) == Tile(8192, 1, 4)
    others = [[tile for tile in tiles.whole if tile.words != 8192] for tiles in (before, after)]
    assert others[0] == others[1]
    assert (after.reloaded, after.streaming) == (before.reloaded, before.streaming)


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


def test_steps_of_several_chunks() -> None:
    """``stages`` of a width are those of the direction unless it says its own."""
    tiles = tuned(
        "rmsnorm",
        "forward",
        "32768: {schedule: streaming, block: 4096}",
        "65536: {schedule: streaming, stages: 1}",
        "streaming: {block: 2048, warps: 4, stages: 2}",
    )
    assert tiles.streaming == Tile(2048, 1, 4, 2)
    assert tiles.chunks == ((32768, Tile(4096, 1, 4, 2)), (65536, Tile(2048, 1, 4, 1)))
    assert tiles.unrolls(is_split=False)
    of_width = tuned("rmsnorm", "forward", "32768: {schedule: streaming, stages: 2}")
    assert of_width.streaming.stages == 1 and of_width.unrolls(is_split=False)
    # Of the split, the first kernel walks; the stages of its tiles are those of a pipeline.
    assert tuned("rmsnorm", "backward", "streaming: {stages: 2}").unrolls(is_split=True)
    assert not tuned("rmsnorm", "backward", "split: {stages: 2}").unrolls(is_split=True)
    assert not rule("rmsnorm").unrolls(is_split=False)


def test_a_chunk_for_a_width() -> None:
    tiles = tuned(
        "rmsnorm",
        "forward",
        "16384: {schedule: streaming}",
        "32768: {schedule: streaming, block: 4096}",
        "65536: {schedule: streaming, warps: 8}",
        "131072: {schedule: streaming, block: 8192, warps: 32}",
        "streaming: {block: 8192, warps: 32}",
    )
    assert tiles.chunks == ((32768, Tile(4096, 1, 32)), (65536, Tile(8192, 1, 8)))
    found = [tiles.chunk(words, is_split=False) for words in (16384, 32768, 131072)]
    assert found == [tiles.streaming, Tile(4096, 1, 32), tiles.streaming]


def test_a_tile_of_the_split_for_a_width() -> None:
    tiles = tuned(
        "rmsnorm",
        "backward",
        "131072: {schedule: split, block: 1024, rows: 4, programs: 1}",
        "262144: {schedule: split, warps: 8, stages: 3}",
        "split: {rows: 2}",
    )
    assert tiles.split == Tile(2048, 2, 4, 4, 2)
    assert tiles.chunks == ((131072, Tile(1024, 4, 4, 4, 1)), (262144, Tile(2048, 2, 8, 3, 2)))
    assert tiles.chunk(262144, is_split=True) == Tile(2048, 2, 8, 3, 2)
    assert tiles.chunk(65536, is_split=True) == tiles.split


LONG = (16384, 32768, 65536)


@pytest.mark.parametrize(
    ("lines", "reloaded"),
    [
        (["32768: {schedule: resident, warps: 16}", "16384: {schedule: reload}"], (16384, 65536)),
        (["4096: {schedule: reload}", "8192: {schedule: resident}"], (4096, *LONG)),
    ],
)
def test_rows_between_others_that_are_read_again_may_stay(
    lines: list[str], reloaded: tuple[int, ...]
) -> None:
    tiles = tuned("rmsnorm", "forward", *lines)
    assert (tiles.reloaded, tiles.whole_words) == (reloaded, 65536)


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
    assert (rule("rmsnorm").reloaded, rule("rmsnorm").whole_words) == (LONG, 65536)
    tiles = tuned("rmsnorm", "forward", *lines)
    assert tiles.reloaded == tuple(w for w in TUNED_WIDTHS if resident < w <= whole)
    assert tiles.whole_words == whole
    assert [tile.words for tile in tiles.whole] == [w for w in TUNED_WIDTHS if w <= whole]


def test_longer_rows_than_the_rule_keeps() -> None:
    assert rule("rmsnorm", "backward").whole_words == 16384
    line = "32768: {schedule: reload, rows: 1, warps: 32}"
    tiles = tuned("rmsnorm", "backward", line)
    assert (tiles.reloaded, tiles.whole_words) == ((16384, 32768), 32768)
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


def test_the_wrapper_has_the_chunks_of_widths() -> None:
    plan = plan_of(
        "rmsnorm",
        "tuning:\n"
        "  forward:\n"
        "    2048: {schedule: streaming, block: 1024, warps: 8}\n"
        "    32768: {schedule: streaming, block: 4096}\n"
        "    streaming: {block: 2048, warps: 4}\n"
        "  backward:\n"
        "    262144: {schedule: split, block: 512, rows: 4, stages: 3}\n",
        double=True,
    )
    wrapper = render_op(plan.row_op.spec)["rmsnorm/op.py"]
    for text in (
        "\n# Widths that have chunks of their own, in words -> chunk, warps."
        "\nFORWARD_CHUNKS = {2048: (1024, 8), 32768: (4096, 4)}\n",
        "        block, warps = FORWARD_CHUNKS.get(words, (FORWARD_STREAMING_BLOCK, 4))\n",
        '        return Plan("streaming", 1, block * 16 // compute.itemsize**2, warps)\n',
        "\nBACKWARD_CHUNKS = {262144: (512, 4, 4, 3, 2)}\n",
        "        block, rows, warps, stages, programs = BACKWARD_CHUNKS.get(\n"
        "            words, (BACKWARD_SPLIT_BLOCK, 1, 4, 4, 2)\n",
        'Plan("split", rows, block * 4 // compute.itemsize, warps, stages, programs)\n',
    ):
        assert text in wrapper, text
    assert "DOUBLE_BACKWARD_CHUNKS" not in wrapper


def test_the_wrapper_says_how_many_chunks_are_a_step() -> None:
    text = "32768: {schedule: streaming, block: 4096}\n    streaming: {warps: 8, stages: 4}"
    plan = plan_of(
        "rmsnorm", f"tuning:\n  forward:\n    {text}\n  backward:\n    streaming: {{stages: 2}}\n"
    )
    files = render_op(plan.row_op.spec)
    for line in (
        "\n# Widths that have chunks of their own, in words -> chunk, warps, chunks a step."
        "\nFORWARD_CHUNKS = {32768: (4096, 8, 4)}\n",
        "\n    stages = plan.stages if _are_aligned(x) else 1"
        '\n    steps = {"STAGES": stages} if plan.schedule == "streaming" else {}\n',
        "block, warps, stages = FORWARD_CHUNKS.get(words, (FORWARD_STREAMING_BLOCK, 8, 4))\n",
        "            stages if n_columns % 16 == 0 and compute.itemsize == 4 else 1,\n",
        "2 if n_columns % 16 == 0 and compute.itemsize == 4 and _are_aligned(x, dy) else 1\n",
    ):
        assert line in files["rmsnorm/op.py"], line
    walks = re.findall(r"tl\.range\(0, n_columns, (.*)\):", files["rmsnorm/kernels.py"])
    assert walks == ["BLOCK, loop_unroll_factor=STAGES"] * 3
    plain = render_op(plan_of("rmsnorm").row_op.spec)
    assert "loop_unroll_factor" not in plain["rmsnorm/kernels.py"]
    assert "**steps" not in plain["rmsnorm/op.py"] and "aligned" not in plain["rmsnorm/op.py"]


def test_rows_that_begin_where_no_vector_fits_take_one_chunk_a_step(
    tmp_path: Path,
) -> None:
    text = "tuning:\n  forward:\n    2048: {schedule: streaming}\n    streaming: {stages: 4}\n"
    text += "  backward:\n    2048: {schedule: split}\n    streaming: {stages: 2}\n"
    op = built_op(plan_of("rmsnorm", text).row_op.spec, tmp_path, "kgen_steps")
    wide = torch.zeros(3, 2100, dtype=torch.bfloat16)
    for x, stages in (
        (wide[:, :2000].contiguous(), 4),
        (wide.view(-1)[: 3 * 2096].view(3, 2096)[:, :2000], 4),
        (wide[:, :2000], 1),  # rows are 2100 apart
        (wide.view(-1)[1:6001].view(3, 2000), 1),  # 2 bytes off
        (wide[:, :2001].contiguous(), 1),
        (wide[:, :2000].double(), 1),
    ):
        call = op._Call(x, None)
        assert call.forward.main.constants["STAGES"] == stages, (x.shape, x.stride())
        dy = torch.zeros_like(x, memory_format=torch.contiguous_format)
        rows = op._plan_backward(call, (True, False, False, False), x, dy).rows
        assert rows.constants["STAGES"] == min(2, stages)
    assert "STAGES" not in op._Call(wide[:, :1000], None).forward.main.constants


OWN_CHUNKS = """\
tuning:
  forward:
    2048: {schedule: streaming, block: 512, warps: 32}
    8192: {schedule: streaming, block: 1024, stages: 2}
    streaming: {block: 4096, warps: 8}
  backward:
    2048: {schedule: split, block: 256, rows: 2, warps: 8, stages: 2, programs: 3}
    4096: {schedule: split, programs: 1}
"""


def test_widths_with_own_chunks_run_in_them(
    tmp_path: Path,
) -> None:
    """The wrapper and ``launch`` agree on every width, and the results are right."""
    plan = planned(plan_of("rmsnorm", OWN_CHUNKS).row_op)
    op = built_op(plan.row_op.spec, tmp_path, "kgen_own_chunks")

    for columns in (1024, 2048, 4096, 8192, 16384, 262144):
        for element, compute in ((2, torch.float32), (4, torch.float32), (8, torch.float64)):
            for which in ("forward", "backward"):
                found = launch(plan, which, columns, element)
                decided = getattr(op, f"{which}_plan")(columns, compute)
                assert decided == (
                    *(found.schedule, found.tile.rows, found.block),
                    *(found.tile.warps, found.tile.stages, found.tile.programs),
                ), (columns, element)
    assert op.forward_plan(2048, torch.float32)[2:4] == (512, 32)
    assert op.forward_plan(1024, torch.float64)[2:4] == (128, 16)
    assert op.forward_plan(4096, torch.float32)[2:4] == (4096, 8)
    assert op.backward_plan(2048, torch.float32)[1:] == (2, 256, 8, 2, 3)
    assert op.backward_plan(1024, torch.float64)[1:] == (2, 128, 8, 2, 3)
    assert op.backward_plan(4096, torch.float32)[1:] == (1, 2048, 4, 4, 1)

    device = "cpu" if op.INTERPRETED else "cuda"
    random = torch.Generator().manual_seed(0)
    for dtype, columns in ((torch.float32, 2000), (torch.float64, 1024)):
        shapes = ((5, columns), (columns,), (5, columns))
        x, weight, dy = (torch.randn(s, generator=random, dtype=dtype).to(device) for s in shapes)
        x.requires_grad_()
        weight.requires_grad_()
        op.calls.clear()
        y = op.rmsnorm(x, weight)
        gradients = torch.autograd.grad(y, (x, weight), dy)
        assert op.calls["forward.streaming"] == op.calls["backward.split"] == 1
        wanted = op.rmsnorm_reference(x, weight)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(gradients, torch.autograd.grad(wanted, (x, weight), dy))


# Rows in chunks that have a program each.

CHUNKS_OF_64 = """tuning:
  forward:
    2048: {schedule: streaming}
    streaming: {block: 64, warps: 1}
  backward:
    2048: {schedule: streaming, block: 128, warps: 1}
"""


def test_the_grid_has_a_program_for_each_chunk(
    tmp_path: Path,
) -> None:
    op = built_op(plan_of("squared_relu", CHUNKS_OF_64).row_op.spec, tmp_path, "kgen_chunks_of_64")

    device = "cpu" if op.INTERPRETED else "cuda"
    random = torch.Generator().manual_seed(0)
    for rows, columns, dtype, forward, backward in (
        (3, 2001, torch.float32, (96, 1, 1), (48, 1, 1)),
        (3, 1985, torch.float32, (96, 1, 1), (48, 1, 1)),
        (3, 1984, torch.float32, (93, 1, 1), (48, 1, 1)),
        (2, 513, torch.float64, (66, 1, 1), (34, 1, 1)),
        (33, 48, torch.float32, (3, 1, 1), (3, 1, 1)),
    ):
        x, dy = (torch.randn(rows, columns, generator=random, dtype=dtype) for _ in range(2))
        x, dy = x.to(device).requires_grad_(), dy.to(device)
        op._remembered.clear()
        y = op.squared_relu(x)
        (dx,) = torch.autograd.grad(y, x, dy)
        (call,) = op._remembered.values()
        (launches,) = call.backward.values()
        assert (call.forward.main.grid, launches.main.grid) == (forward, backward), columns
        wanted = op.squared_relu_reference(x)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(dx, torch.autograd.grad(wanted, x, dy)[0])


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
    assert widest_of(plan_of(name), direction) == widest


def test_a_condition_for_each_element_takes_no_registers() -> None:
    tuning = "tuning: {forward: {32768: {schedule: resident, rows: 1, warps: 32}}}\n"
    widest = widest_of(plan_of("masked_softmax", tuning), "forward")
    assert widest == widest_of(plan_of("softmax"), "forward") == {2: 32768, 4: 32768, 8: 8192}


def test_tuned_rows_of_wide_elements_are_no_wider_than_the_rule_has_them() -> None:
    plan = plan_of("rmsnorm", "tuning: {forward: {65536: {schedule: resident}}}\n")
    assert widest_of(plan, "forward") == {2: 65536, 4: 32768, 8: 8192}
    plan = plan_of("rmsnorm", "tuning: {forward: {2048: {schedule: streaming}}}\n")
    assert widest_of(plan, "forward") == {2: 1024, 4: 1024, 8: 1024}
    assert "FORWARD_WIDEST" not in render_op(plan.row_op.spec)["rmsnorm/op.py"]


def test_the_wrapper_looks_at_all_matrices_and_at_nothing_else() -> None:
    for name, matrices in (("rmsnorm", "x"), ("add_layernorm", "x, residual"), ("gelu", None)):
        wrapper = render_op(plan_of(name).row_op.spec)[f"{name}/op.py"]
        call = f"self.itemsize = _itemsize(self.compute, {matrices})\n"
        assert (call in wrapper) == (matrices is not None)
