"""The table: the loop beside the hand, as Markdown, from the parts that are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor import compare
from advisor.findings import Range, Trial

from .figures import Machine, Row
from .parts import Duel, HandPart, LoopPart, Parts, best_stage

# What the issue gives for this sequence on a V100, samples per second: the first and the last stage.
_PUBLISHED = "Published for the same sequence on a V100: 400 → 3268 samples/s, 8.17×."
_COLUMNS = (
    "step",
    "samples/s",
    "over epochs",
    "speedup",
    "GPU utilization",
    "Tensor Core share",
    "peak memory",
    "batch",
    "workers",
)
_LEGEND = """\
- Step and samples/s: the timing window, without a profiler. "Over epochs" counts the start of each epoch as well, when
  loader workers have nothing ready; – where no epoch began in that window.
- Speedup: over the script as it is, per sample; the 95 % interval in brackets where there are runs enough for one.
- GPU utilization: kernels running, as a share of the profiled steps. Tensor Core share: of matrix work by time, at
  least and at most, since not every kernel's name tells.
- Peak memory: allocated / reserved by CUDA's allocator over the timing window."""


def render(parts: Parts) -> str:
    """The whole document. A part that was not measured is named as such."""
    lines = ["# The tutorial's training on a GPU: the loop beside the hand", ""]
    lines += _machines(parts)
    lines += ["", *_bottom_line(parts), "", _PUBLISHED, "", "## By hand", ""]
    if parts.hand is not None:
        lines += _rows(parts.hand.rows, "each stage includes the earlier ones")
        lines += ["", *_first_losses(parts.hand.rows)]
    else:
        lines.append("Not measured (`--part hand`).")
    lines += ["", "## The loop, unattended (`--accept all`)", ""]
    if parts.loop is not None:
        lines += _rows(parts.loop.rows, "each kept fix includes the earlier ones")
        lines += ["", *_trials(parts.loop)]
    else:
        lines.append("Not measured (`--part loop`).")
    lines += ["", "## How to read this", "", _LEGEND]
    return "\n".join(lines) + "\n"


def _machines(parts: Parts) -> Iterator[str]:
    machines: dict[Machine, list[str]] = {}
    for name, part in (("loop", parts.loop), ("by hand", parts.hand), ("side by side", parts.duel)):
        if part is not None:
            machines.setdefault(part.machine, []).append(name)
    for machine, names in machines.items():
        memory = f" ({machine.memory_gib:.0f} GiB)" if machine.memory_gib else ""
        driver = f", driver {machine.driver}" if machine.driver else ""
        which = f"{', '.join(names)}: " if len(machines) > 1 else ""
        yield (
            f"{which}{machine.date}, {machine.device}{memory}{driver}, torch {machine.torch}, Python {machine.python}, "
            f"{machine.cpus:g} CPUs ({machine.cpu or 'unknown'}), advisor {machine.advisor}  "
        )
    command = parts.hand.rows[0].command if parts.hand is not None else ""
    if parts.loop is not None:
        command = " ".join(parts.loop.last.argv)
    if command:
        yield f"`cifar_resnet.py {command}` at the end; every run is ended once it has measured."


def _bottom_line(parts: Parts) -> Iterator[str]:
    loop, hand, duel = parts.loop, parts.hand, parts.duel
    if loop is not None and loop.rows[-1].speedup is not None:
        kept = len(loop.rows) - 1
        yield f"- **Loop**: {_result(loop.rows[0], loop.rows[-1])}, {kept or 'no'} fix{'' if kept == 1 else 'es'} kept."
    if hand is not None:
        stage = best_stage(hand)
        yield f"- **Hand**: {_result(hand.rows[0], hand.rows[stage])}, best at stage {stage} ({hand.rows[stage].name})."
    if duel is not None:
        yield _side_by_side(duel)
    elif loop is not None and hand is not None:
        yield from _from_apart(loop, hand)


def _result(first: Row, last: Row) -> str:
    over = f"; over epochs {last.epoch_samples_per_s:,.0f}" if last.epoch_samples_per_s is not None else ""
    return f"{_number(first.samples_per_s)} → {_number(last.samples_per_s)} samples/s{over}, {_speedup(last)}"


def _side_by_side(duel: Duel) -> str:
    found = compare.compare_pairs(duel.costs)
    verdict = "the loop wins" if found.low > 1 else "the hand wins" if found.high < 1 else "no difference can be told"
    guess = ", spread assumed" if found.assumed else ""
    rates = [(hand, loop) for hand, loop in duel.epoch_rates if hand and loop]
    over = ""
    if rates and len(rates) == len(duel.epoch_rates):
        ratio = compare.compare_pairs([(1 / hand, 1 / loop) for hand, loop in rates])
        over = f"; over epochs {_interval(ratio.speedup, Range(ratio.low, ratio.speedup, ratio.high))}"
    return (
        f"- **Loop over hand** (stage {duel.stage}), {len(duel.costs)} pairs of runs in alternation{guess}: "
        f"{_interval(found.speedup, Range(found.low, found.speedup, found.high))} per sample{over}: {verdict}."
    )


def _from_apart(loop: LoopPart, hand: HandPart) -> Iterator[str]:
    one, other = loop.rows[-1].samples_per_s, hand.rows[best_stage(hand)].samples_per_s
    if one and other:
        yield f"- **Loop over hand**: {one / other:.2f}×, from runs that were made apart (no `--part duel`)."


def _rows(rows: Sequence[Row], first: str) -> Iterator[str]:
    yield f"| {first} | " + " | ".join(_COLUMNS) + " |"
    yield "|---|" + "---:|" * len(_COLUMNS)
    notes = []
    for number, row in enumerate(rows):
        if row.error:
            yield f"| {number} {_cell(row.name)} | failed: {_cell(row.error)} |" + " – |" * (len(_COLUMNS) - 1)
            continue
        cells = (
            f"{row.step_ms:.1f} ms" if row.step_ms is not None else "–",
            _number(row.samples_per_s),
            _number(row.epoch_samples_per_s),
            _speedup(row),
            _share(row.gpu_busy),
            _cores(row.tensor_cores),
            _memory(row),
            _number(row.batch),
            _number(row.workers),
        )
        yield f"| {number} {_cell(row.name)} | " + " | ".join(cells) + " |"
        notes += [f"- {number} {row.name}: {note}" for note in row.notes]
    if notes:
        yield from ("", *notes)


def _first_losses(rows: Sequence[Row]) -> Iterator[str]:
    shown = [
        f"| {number} | "
        + " | ".join("–" if loss is None else f"{loss:.4f}" for loss in (*row.losses, *[None] * 4)[:4])
        + " |"
        for number, row in enumerate(rows)
        if row.losses
    ]
    if shown:
        yield from ("First losses, seeded alike:", "", "| stage | 1 | 2 | 3 | 4 |", "|---|---:|---:|---:|---:|", *shown)


def _trials(loop: LoopPart) -> Iterator[str]:
    outcome = loop.document.outcome
    if outcome is None:
        yield "No fix was tried."
        return
    yield "| tried | predicted | measured | pairs | kept? | why |"
    yield "|---|---:|---:|---:|---|---|"
    for trial in outcome.trials:
        predicted = trial.predicted.speedup
        cells = (
            f"{trial.number} {_cell(trial.title)} ({trial.rule})",
            _interval(predicted.likely, predicted),
            _measured(trial),
            str(trial.measured.pairs) if trial.measured else "–",
            trial.status,
            _cell(trial.reason),
        )
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield f"It ended after {outcome.seconds / 60:.0f} min: {outcome.ended or 'not yet'}. Then: {outcome.verdict}."
    never = [each for each in loop.document.findings if each.status in ("proposed", "skipped")]
    if never:
        yield "Found and not tried: " + "; ".join(f"{each.title} ({each.rule})" for each in never) + "."


def _measured(trial: Trial) -> str:
    measured = trial.measured
    return _interval(measured.speedup, Range(measured.low, measured.speedup, measured.high)) if measured else "–"


def _interval(value: float, range_: Range) -> str:
    return f"{value:.2f}× ({range_.low:.2f}–{range_.high:.2f})"


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return "–"
    return _interval(row.speedup, row.interval) if row.interval is not None else f"{row.speedup:.2f}×"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _cores(value: tuple[float, float] | None) -> str:
    if value is None:
        return "–"
    low, high = value
    return _share(low) if round(low, 2) == round(high, 2) else f"{low:.0%}–{high:.0%}"


def _memory(row: Row) -> str:
    if row.peak_allocated_gib is None:
        return "–"
    reserved = f" / {row.peak_reserved_gib:.1f}" if row.peak_reserved_gib is not None else ""
    return f"{row.peak_allocated_gib:.1f}{reserved} GiB"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
