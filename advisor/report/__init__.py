"""Reports: every one a rendering of the same findings document; none computes anything of its own.

:func:`write` writes them all into a folder. The renderers are ``terminal.show``, ``page.render`` (HTML) and
``markdown.render``; :mod:`advisor.report.wording` is how they all say a figure.
"""

from __future__ import annotations

import os
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.evidence import Evidence
from advisor.findings import Findings, decode, encode

FINDINGS_JSON = "findings.json"
REPORT_HTML = "report.html"
REPORT_MD = "report.md"


def write(document: Findings, folder: str | os.PathLike[str], evidence: Evidence | None = None) -> dict[str, str]:
    """Write findings.json, report.html and report.md into `folder` (made where it is missing).

    ``evidence`` adds the picture of a step and the tables to the page. Returns what each file is → its path, for
    ``terminal.show``. Raises AdvisorError when the folder cannot be written. A file appears whole or not at all.
    """
    from advisor.report import markdown, page
    from advisor.report.details import details

    target = Path(folder)
    texts = {
        FINDINGS_JSON: encode(document).decode(),
        REPORT_HTML: page.render(document, details(evidence) if evidence is not None else None),
        REPORT_MD: markdown.render(document),
    }
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            partial = target / f".{name}.partial"
            # Diffs may hold carriage returns that have to survive; a lone surrogate must not end the report.
            partial.write_bytes(text.encode("utf-8", "replace"))
            partial.replace(target / name)
    except OSError as error:
        raise AdvisorError(
            f"cannot write the report to {target}: {error.strerror or error}; name another folder with --output."
        ) from error
    return {
        "report": str(target / REPORT_HTML),
        "markdown": str(target / REPORT_MD),
        "findings": str(target / FINDINGS_JSON),
    }


def read(folder: str | os.PathLike[str]) -> Findings:
    """The findings document of a session's folder (or the file itself).

    Raises AdvisorError when there is none, or it is not one of ours.
    """
    import msgspec

    path = Path(folder)
    if path.is_dir():
        path = path / FINDINGS_JSON
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        raise AdvisorError(
            f"{path} does not exist: name the folder of a session that `advisor profile` or `advisor analyze --output` "
            "has finished."
        ) from None
    except OSError as error:
        raise AdvisorError(f"cannot read {path}: {error.strerror or error}.") from error
    except msgspec.DecodeError as error:
        raise AdvisorError(f"{path} is no findings document of this version of advisor: {error}.") from error


def newest(sessions: str | os.PathLike[str]) -> Path:
    """The session in the folder `sessions` whose findings were written last. Raises AdvisorError when there is none."""
    found = list(Path(sessions).glob(f"*/{FINDINGS_JSON}"))
    if not found:
        raise AdvisorError(f"{sessions} holds no finished session: run `advisor profile` first, or name a folder.")
    return max(found, key=lambda path: path.stat().st_mtime).parent
