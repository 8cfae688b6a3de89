"""What torch-tb-profiler recommends for a recorded trace: ``python recommendations.py TRACE OUT.json``."""

import json
import sys
import tempfile


def main() -> None:
    """Parse and make the overview, as TensorBoard asks for it."""
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    with tempfile.TemporaryDirectory() as folder:
        profile = RunProfileData.parse("worker", 0, sys.argv[1], folder)
        RunGenerator("worker", 0, profile).generate_run_profile()
    with open(sys.argv[2], "w") as file:
        json.dump({"sayings": [{"code": "", "text": each} for each in profile.recommendations]}, file)


if __name__ == "__main__":
    main()
