"""The loop: an accepted fix is tried, measured against the script without it, and kept only if it helped.

``loop.Improve`` is the whole of it. What it goes by, a module each: which fixes may be tried (``offers``), who says so
(``accept``), what is tried of them (``candidates``), the script as patched so far (``state``), its runs (``bench``),
two versions run in turn and judged (``trial``), whether they compute the same (``numerics``), what came of it all
(``outcome``), and the user's files, when they want it (``write``).
"""
