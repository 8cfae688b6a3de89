"""How figures are said."""

from __future__ import annotations

import pytest

from advisor.evidence import facts
from advisor.findings import Range
from advisor.report import wording
from advisor.report.colours import FAMILIES
from advisor.report.parts import part


@pytest.mark.parametrize(
    ("key", "amount", "said"),
    [
        ("data_wait_share", 0.612, "61%"),
        ("gpu_busy_share", 0.021, "2.1%"),
        ("tensor_core_share_low", 0.0, "0%"),
        ("loss_share", 0.0001, "<0.1%"),
        ("mfu", 0.041, "4.1%"),
        ("fetch_s", 0.0312, "31.2 ms"),
        ("start_s", 2.5, "2.5 s"),
        ("h2d_ms", 0.0004, "400 ns"),
        ("mean_step_ms", 1234.5, "1.23 s"),
        ("h2d_bytes", 38_535_168, "36.8 MiB"),
        ("peak_memory_bytes", 11_811_160_064, "11 GiB"),
        ("samples_per_s", 12345.6, "12,346"),
        ("achieved_flops", 3.2e12, "3.2 TFLOP/s"),
        ("flops_per_s", 3.2e12, "3.2 TFLOP/s"),
        ("flops_per_step", 6.95e9, "6.95 GFLOP"),
        ("kernel_busy_share_of_steps", 0.549, "55%"),
        ("profiler_inflation", 1.04, "1.04×"),
        ("kernels", 4012, "4,012"),
        ("usable_cpus", 2.0, "2"),
        ("pin_memory", False, "no"),
        ("dtype", "float32", "float32"),
        ("peak", None, "unknown"),
        ("odd", float("nan"), "unknown"),
    ],
)
def test_a_figure_is_said_in_the_unit_of_its_name(key: str, amount: object, said: str) -> None:
    assert wording.value(key, amount) == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "likely", "high", "said"),
    [
        (1.4, 1.6, 1.8, "1.4–1.8×"),
        (1.03, 1.05, 1.08, "1.03–1.08×"),
        (1.42, 1.43, 1.44, "1.42–1.44×"),
        (2.0, 2.0, 2.0, "2.00×"),
        (0.97, 1.0, 1.03, "memory"),
    ],
)
def test_a_range_has_as_many_decimals_as_tell_its_ends_apart(low: float, likely: float, high: float, said: str) -> None:
    assert wording.speedup(Range(low=low, likely=likely, high=high)) == said


def test_a_label_spells_the_names_of_the_field() -> None:
    assert wording.label("gpu_busy_share") == "GPU busy"
    assert wording.label("h2d_ms") == "H2D"
    assert wording.label("usable_cpus") == "usable CPUs"


@pytest.mark.parametrize("key", [*facts.DEVICE_CLASSES, *facts.CPU_CLASSES])
def test_every_class_of_the_breakdown_is_explained_and_has_a_colour(key: str) -> None:
    known = part(key)
    assert known.meaning
    assert known.family in FAMILIES


@pytest.mark.parametrize("classes", [facts.DEVICE_CLASSES, facts.CPU_CLASSES])
def test_no_two_classes_of_a_breakdown_share_a_colour_or_a_character(classes: tuple[str, ...]) -> None:
    families = [FAMILIES[part(key).family] for key in classes]
    assert len({family.page for family in families}) == len(classes)
    assert len({family.glyph for family in families}) == len(classes)
    assert len({family.terminal for family in families}) == len(classes)


def test_every_figure_of_a_trace_has_a_name_of_its_own() -> None:
    keys = ("h2d_ms", "h2d_bytes", "h2d_pageable", "mean_step_ms", "step_ms", "kernel_busy_ms", "kernel_sum_ms")
    assert len({wording.figure(key) for key in keys}) == len(keys)


def test_the_device_is_told_without_what_it_lacks() -> None:
    device = {"type": "cpu", "name": "EPYC", "capability": [], "memory": 25_276_514_304, "driver": "", "hip": None}
    assert wording.flattened({"device": device}) == [("device", "type cpu, name EPYC, memory 23.5 GiB")]


def test_evidence_leaves_out_the_unknown_and_tells_a_share_from_a_time() -> None:
    rows = wording.evidence({"data_wait_share": 0.4, "data_wait_s": 0.07, "fetch_cpu_s": None})
    assert rows == [("data wait share", "40%"), ("data wait", "70 ms")]


def test_an_environment_is_rows_of_text_without_the_empty_ones() -> None:
    rows = wording.flattened(
        {"torch": "2.15", "compiler": "", "flags": ["avx2", "amx"], "packages": {"lightning": "2.5"}}
    )
    assert rows == [("torch", "2.15"), ("flags", "avx2, amx"), ("packages", "lightning 2.5")]
