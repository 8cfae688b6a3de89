"""Big traces made of small real ones, and what reads them: for ``tests/benchmarks/analyze_speed.py``."""
