"""What a training loop reads of its batches now and then."""

from __future__ import annotations

import pytest

from advisor.evidence.loading.read_fields import is_read

LOOP = """
for epoch in range(9):
    for step, {batch} in enumerate(loader):
        loss = model(x)
        loss.backward()
        {rest}
"""


@pytest.mark.parametrize(
    ("batch", "rest", "read"),
    [
        ("batch", "if step % 50 == 0:\n            show(batch['scan'])", True),
        ("batch", "scan = batch.get('scan')\n        show(scan)", True),
        ("batch", "scan = batch['scan']", False),
        ("batch", "scan = batch['scan'].float()", True),
        ("batch", "show(batch['mask'])", False),
        ("(x, y, scan)", "show(y)", False),
        ("(x, y, scan)", "if step % 50 == 0:\n            show(scan)", True),
        ("batch", "x, y, scan = batch\n        show(scan)", True),
        ("batch", "x, y, scan = batch", False),
        ("batch", "show(batch[2])", True),
        ("batch", "show(batch[1])", False),
        ("batch", "show(x.shape[2], x.max(2)[2])", False),
        ("batch", "b, c, h = x.shape\n        show(h)", False),
        ("(x, scan)", "show(x)", False),
    ],
)
def test_what_the_loop_reads(batch: str, rest: str, read: bool) -> None:
    text = LOOP.format(batch=batch, rest=rest)
    assert any(is_read([text], field) for field in ("['scan']", "[2]")) is read
    assert not is_read([text.replace("backward", "item")], "['scan']")  # an evaluation's
    beside = LOOP.format(batch="batch", rest="") + "    for batch in val:\n        show(batch['scan'], batch[2])\n"
    assert not any(is_read([beside], field) for field in ("['scan']", "[2]"))
    assert not is_read(["def f(:"], "['scan']") and not is_read([text], "")
