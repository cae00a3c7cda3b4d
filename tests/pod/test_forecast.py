"""From a module's text to a run's time, without the compiler."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.errors import BadInput
from mlperf_tpu.pod import saved
from mlperf_tpu.pod.forecast import (
    HOST_IMAGES_PER_S,
    START_S,
    collective_part,
    device_groups,
    memory,
    run_time,
    step_time,
)
from mlperf_tpu.pod.hlo import Collective, read
from mlperf_tpu.pod.machine import slice_for
from mlperf_tpu.pod.network import collective_cost
from mlperf_tpu.pod.published import entries, published
from mlperf_tpu.spec import load, resolve

# Written for this test in the form of libtpu's text: a fused op, a loop of three, an
# asynchronous sum, and a reduce-scatter inside of a custom fusion.
MODULE = """HloModule step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%scatter (p: f32[8,128]) -> f32[1,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %rs = f32[1,128]{1,0} reduce-scatter(%p), replica_groups=[1,8]<=[8], \
dimensions={0}, to_apply=%sum, metadata={op_name="weight_update/XlaReduceScatter"}
}

%body (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[], f32[4]{0}) parameter(0)
  ROOT %step = (s32[], f32[4]{0}) fusion(%t), kind=kLoop, calls=%inner, \
metadata={op_name="layer_1/while/mul"}, backend_config={"estimated_cycles":"940"}
}

%cond (t: (s32[], f32[4])) -> pred[] {
  %t = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[8,128], y: bf16[1000]) -> f32[1,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  %y = bf16[1000]{0:T(1024)(2,1)} parameter(1)
  %conv = f32[8,128]{1,0} fusion(%x), kind=kOutput, calls=%inner, \
metadata={op_name="layer_1/Conv2D"}, backend_config={"estimated_cycles":"9400"}
  %grad = f32[8,128]{1,0} fusion(%x), kind=kOutput, calls=%inner, \
metadata={op_name="gradient_tape/layer_1/Mul"}, backend_config={"estimated_cycles":"94"}
  %copy.1 = f32[8,128]{1,0} copy(%grad), backend_config={"estimated_cycles":"6"}
  %flat.1 = f32[1000]{0:T(1024)} reshape(%grad)
  %loop = (s32[], f32[4]{0}) while(%t0), condition=%cond, body=%body
  %s = bf16[1000]{0} all-reduce-start(%y), replica_groups={{0,1},{2,3},{4,5},{6,7}}, \
to_apply=%sum, metadata={op_name="layer_1/batch_norm/XlaAllReduce"}
  %d = bf16[1000]{0} all-reduce-done(%s)
  ROOT %f = f32[1,128]{1,0} fusion(%grad), kind=kCustom, calls=%scatter
}
"""
DEVICES = [[k] for k in range(8)]
# In the same form: a sum in two colours, each along its own axis of 4x2 cores,
# scattered and, of zeros with a shard in them, gathered.
COLOURS = """HloModule step, is_scheduled=true

%all-reduce-scatter (p: f32[64,8,128]) -> (f32[8,8,128], f32[16,8,128]) {
  %p = f32[64,8,128]{2,1,0:T(8,128)} parameter(0)
  %r0 = f32[64,8,128]{2,1,0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}
  %s0 = f32[8,8,128]{2,1,0} dynamic-slice(%r0, %i, %z, %z), \
dynamic_slice_sizes={8,8,128}
  %r1 = f32[64,8,128]{2,1,0} all-reduce(%p), \
replica_groups={{0,4},{1,5},{2,6},{3,7}}
  %s1 = f32[16,8,128]{2,1,0} dynamic-slice(%r1, %i, %z, %z), \
dynamic_slice_sizes={16,8,128}
  ROOT %both = (f32[8,8,128]{2,1,0}, f32[16,8,128]{2,1,0}) tuple(%s0, %s1)
}

%all-gather (q: f32[8,8,128]) -> f32[32,8,128] {
  %q = f32[8,8,128]{2,1,0:T(8,128)} parameter(0)
  %d = f32[32,8,128]{2,1,0} dynamic-update-slice(%zeros, %q, %i, %z, %z)
  ROOT %r = f32[32,8,128]{2,1,0} all-reduce(%d), replica_groups={{0,1,2,3},{4,5,6,7}}
}

ENTRY %main (x: f32[64,8,128]) -> f32[32,8,128] {
  %x = f32[64,8,128]{2,1,0:T(8,128)} parameter(0)
  %f = (f32[8,8,128], f32[16,8,128]) fusion(%x), kind=kCustom, calls=%all-reduce-scatter
  %g = f32[8,8,128]{2,1,0} get-tuple-element(%f), index=0
  ROOT %o = f32[32,8,128]{2,1,0} fusion(%g), kind=kCustom, calls=%all-gather
}
"""


def test_ops_loops_and_hidden_collectives_are_read() -> None:
    module = read(MODULE)
    assert {op.name: (op.cycles, op.count) for op in module.ops} == {
        "conv": (9400, 1),
        "grad": (94, 1),
        "copy.1": (6, 1),
        "flat.1": (0, 1),
        "step": (3 * 940, 3),
    }
    norm, scatter = module.collectives
    assert (norm.kind, norm.n_bytes, len(norm.groups)) == ("all-reduce", 2000, 4)
    assert (scatter.kind, scatter.n_bytes) == ("reduce-scatter", 8 * 128 * 4)
    assert scatter.groups == (tuple(range(8)),)
    parts = [collective_part(c, 8) for c in module.collectives]
    assert parts == ["batch_norm", "gradient_sum"]


def test_a_step_is_its_cycles_and_its_collectives() -> None:
    where = slice_for(4, None)
    module = read(MODULE)
    step = step_time(module, where, DEVICES, batch_bytes=0)
    ms = where.core.estimate_scale / 940e3
    assert step.forward == pytest.approx((9400 + 3 * 940) * ms)
    # The nameless copy with it, and the reshape, whose tiles of 4 KiB are moved.
    moved = (4096 + 4096) / (450 * 1e6)
    assert step.backward == pytest.approx(100 * ms + moved)
    assert where.grid is not None
    for part, found in zip(
        (step.batch_norm, step.gradient_sum), module.collectives, strict=True
    ):
        groups = device_groups(found, DEVICES)
        cost = collective_cost(found.kind, found.n_bytes, groups, where.grid)
        assert part == pytest.approx(cost.total_ms)
    assert step.input == 0
    # Eight cores share a host's 12 GB/s; what the step does not hide is added.
    slow = step_time(module, where, DEVICES, batch_bytes=10**9)
    assert slow.total == pytest.approx(8e9 / 12e9 * 1e3)


def test_fused_all_reduces_are_what_their_emitters_make_of_them() -> None:
    tile = 8 * 128 * 4
    rows, columns, gather = read(COLOURS).collectives
    assert (rows.kind, columns.kind) == ("reduce-scatter", "reduce-scatter")
    assert rows.n_bytes == columns.n_bytes == 32 * tile  # each sums its half
    assert (gather.kind, gather.n_bytes) == ("all-gather", 32 * tile)
    assert rows.at_once == columns.at_once == "f" and not gather.at_once


@pytest.mark.parametrize(
    ("algorithm", "one_ring"),
    [
        ('"emitter":"1DAllGatherOnMajorDimImbalanced"', True),
        ('"emitter":"SingleInputAllGatherFusion","strategy":"StrategyRing"', True),
        ('"emitter":"SingleInputAllGatherFusion","strategy":"StrategyND"', False),
    ],
)
def test_a_collective_runs_over_one_ring_where_the_compiler_says_so(
    algorithm: str, one_ring: bool
) -> None:
    where = slice_for(1024, None)
    group = "{" + ",".join(map(str, range(2048))) + "}"
    text = (
        "ENTRY %main (x: bf16[1000000]) -> bf16[2048000000] {\n"
        "  %x = bf16[1000000]{0} parameter(0)\n"
        "  ROOT %g = bf16[2048000000]{0} all-gather(%x), "
        f"replica_groups={{{group}}}, backend_config={{{algorithm}}}\n}}\n"
    )
    step = step_time(read(text), where, [[k] for k in range(2048)], batch_bytes=0)
    cost = collective_cost(
        "all-gather", 2048 * 2e6, [range(2048)], where.grid, one_ring=one_ring
    )
    assert step.gradient_sum == pytest.approx(cost.total_ms)


def test_the_colours_of_a_sum_take_as_long_as_the_slower() -> None:
    where = slice_for(4, None)
    module = read(COLOURS)
    rows, columns, gather = (
        collective_cost(
            c.kind, c.n_bytes, device_groups(c, DEVICES), where.grid
        ).total_ms
        for c in module.collectives
    )
    assert rows != columns
    step = step_time(module, where, DEVICES, batch_bytes=0)
    assert step.gradient_sum == pytest.approx(max(rows, columns) + gather)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups=[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups={{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['r'=2,'axis_0'=2] {'axis_0'}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['r'=2,'axis_0'=2] {'r'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['r'=2,'a'=2] {'r','a'}", ((0, 1, 2, 3),)),
    ],
)
def test_groups_are_read_in_every_form(text: str, groups: object) -> None:
    hlo = MODULE.replace("replica_groups={{0,1},{2,3},{4,5},{6,7}}", text)
    assert read(hlo).collectives[0].groups == groups


@pytest.mark.parametrize("text", ["mesh['a'=4] {'a':(1)2}", "mesh['a'=4] {'b'}", "@m"])
def test_groups_in_a_form_that_is_not_known_are_refused(text: str) -> None:
    hlo = MODULE.replace("={{0,1},{2,3},{4,5},{6,7}}", f"={text}")
    with pytest.raises(ValueError, match="not known"):
        read(hlo)


def test_messages_between_replicas_are_what_their_scope_says() -> None:
    line = (
        "  %h = f32[100]{0} collective-permute(%y), source_target_pairs={{0,1},{1,0}}, "
        'metadata={op_name="SCOPE/XlaCallModule"}\n  %d = bf16'
    )
    for scope, part in (
        ("stem/batch_norm", "batch_norm"),
        ("weight_update", "gradient_sum"),
    ):
        hlo = MODULE.replace("  %d = bf16", line.replace("SCOPE", scope), 1)
        assert collective_part(read(hlo).collectives[1], 2) == part


@pytest.mark.parametrize(
    ("groups", "n_replicas", "part"),
    [
        (((0, 1),), 1, "halo"),
        (((0, 1), (2, 3)), 2, "halo"),
        (((0, 1, 2, 3), (4, 5, 6, 7)), 4, "batch_norm"),
        (((0, 1, 2, 3),), 2, "gradient_sum"),
    ],
)
def test_a_sum_over_cores_is_what_its_groups_span(groups, n_replicas, part) -> None:
    found = Collective("all-reduce", 4, groups, "both", "", 1)
    assert collective_part(found, n_replicas) == part


def test_a_halo_stays_inside_each_replica() -> None:
    line = (
        "  %h = bf16[1000]{0} collective-permute(%y), channel_id=1, "
        "source_target_pairs={{0,1},{1,0}}\n  %d = bf16"
    )
    found = read(MODULE.replace("  %d = bf16", line, 1)).collectives[1]
    assert collective_part(found, 4) == "halo" and found.n_bytes == 2000
    pairs = device_groups(found, [[0, 1], [2, 3], [4, 5], [6, 7]])
    assert pairs == tuple((a, a ^ 1) for a in range(8))


def test_a_run_is_its_blocks_evaluations_and_start() -> None:
    run = run_time(25.0, 5.0, [157, 314, 400], 2, [4, 4, 4], 0, 256)
    assert (run.steps, run.epochs, run.steps_per_block) == (400, 12, 157)
    assert run.evaluation_s == pytest.approx(0.010)
    assert run.steady_step_ms == pytest.approx(25 + 10 / 157)
    assert run.time_to_train_s == pytest.approx(START_S + 400 * 0.025 + 3 * 0.010)
    # Four hosts decode the first epoch more slowly than it would train.
    images = 1_281_167
    slow = run_time(25.0, 5.0, [157, 314, 400], 2, [4, 4, 4], images, 4)
    more = images / 4 / HOST_IMAGES_PER_S - 400 / 12 * 0.025
    assert slow.time_to_train_s - run.time_to_train_s == pytest.approx(more)


def test_memory_by_kind_adds_up() -> None:
    stats = {
        "argument_bytes": 120,
        "temporary_bytes": 50,
        "output_bytes": 108,
        "alias_bytes": 100,
        "code_bytes": 7,
    }
    found = memory(stats, {"weights": 80, "batch": 30}, slice_for(4, None))
    assert found["padding"] == 10 and found["results"] == 8
    assert found["total"] == 120 + 50 + 8 + 7
    assert found["limit"] == 16 * 2**30


def test_published_rows_are_googles_v3_results() -> None:
    rows = entries()
    assert {row.round for row in rows} == {"v0.6", "v0.7"}
    assert len([row for row in rows if row.benchmark == "resnet"]) == 9
    document = load("resnet50")
    row = published(resolve(document, scale_name="v0.6-1024"))
    assert row is not None
    # 3.95 s a block of 157 steps (papers.md 1.7), 76.9 s to train.
    assert row.step_ms(157) == pytest.approx(25.1, abs=0.1)
    assert row.score_s == pytest.approx(76.9, abs=0.1)
    assert published(resolve(document, scale_name="paper-1024-tuned")) is None
    other = resolve(
        document, scale_name="v0.6-1024", settings=["training.global_batch=16384"]
    )
    assert published(other) is None


def test_a_forecast_stands_beside_runs_of_as_many_evaluations() -> None:
    # Six of ten runs met Transformer's target after 3 evaluations, in 205.8 to 206.7 s;
    # the entry's score of 231.2 s (google_submissions.md 1) is over those of 4 too.
    row = published(resolve(load("transformer"), scale_name="v0.6-64"))
    assert row is not None
    assert row.n_evaluations == 3
    assert row.same_length_s == pytest.approx(206.0, abs=0.2)
    assert row.score_s == pytest.approx(231.2, abs=0.1)


@pytest.mark.parametrize(
    ("chips", "topology", "message"),
    [
        (1024, "v3:32x16x1", "has 512 chips, but --chips says 1024"),
        (100, None, "no TPU v3 grid of 100 chips; known: 1, 2"),
        (1600, "v3:40x40x1", "a pod is 32x32"),
        (4, "v9:2x2", "no generation 'v9'"),
        (4, "2by2", "is not a name; write"),
    ],
)
def test_a_topology_that_does_not_exist_is_refused(chips, topology, message) -> None:
    with pytest.raises(BadInput, match=message):
        slice_for(chips, topology)


def test_other_generations_are_named_as_the_compiler_names_them() -> None:
    assert slice_for(1024, "v4:8x8x16").name == "v4:8x8x16"
    assert slice_for(1024, "v4:8x8x16").grid is None
    v5e = slice_for(256, "v5e:16x16")
    assert (v5e.name, v5e.n_devices) == ("v5e:16x16", 256)


def test_what_grows_past_the_margin_is_found(tmp_path) -> None:
    row = {
        **dict.fromkeys(saved.SAME, 1),
        "topology": "v3:2x2",
        "step_ms": {"total": 10.0},
        "hbm_bytes": {"total": 100},
        "collectives": {"gradient_sum": {"count": 1, "bytes": 1000}},
    }
    file = tmp_path / "plan.json"
    file.write_text(saved.text([row]))
    assert saved.grown([row], file, 0.0) == []
    more = {**row, "step_ms": {"total": 10.3}}
    more["collectives"] = {"gradient_sum": {"count": 2, "bytes": 1000}}
    more["collectives"]["halo"] = {"count": 1, "bytes": 8}
    found = saved.grown([more], file, 5.0)
    assert [line.rpartition(": ")[2].split(" ")[:2] for line in found] == [
        ["gradient_sum", "count"],
        ["halo", "count"],
        ["halo", "bytes"],
    ]
    assert len(saved.grown([more], file, 2.0)) == 4
    with pytest.raises(BadInput, match="holds no plan of"):
        saved.grown([{**row, "chips": 9}], file, 2.0)
    file.write_text(json.dumps({"rows": [1]}))
    with pytest.raises(BadInput, match="is no saved plan; make it with --save"):
        saved.grown([row], file, 2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--chips 1024"),
        (["--sweep", "--chips", "64"], "leave --chips and --scale out"),
        (["--chips", "many"], "is no number of chips"),
        (["--chips", "64", "--svg", "x.svg"], "add --sweep"),
        (["--chips", "64,128", "--profile"], "--profile is of one scale"),
        (["--chips", "64", "--topology", "v3:4x4x1"], "has 16 chips"),
    ],
)
def test_wrong_calls_are_refused_with_the_remedy(arguments, message) -> None:
    done = CliRunner().invoke(main, ["plan", "resnet50", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


def test_help_imports_nothing_heavy(run_python) -> None:
    code = (
        "import sys; from mlperf_tpu.cli import main\n"
        "main(['plan', '--help'], standalone_mode=False)\n"
        "heavy = {'tensorflow', 'jax', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run_python("-c", code)
