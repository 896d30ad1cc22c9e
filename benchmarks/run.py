"""Every table about speed and scale, by one command.

Run: python benchmarks/run.py [PART ...] [-- OPTIONS of benchmarks/speed.py]

Parts: `speed` (model, `fast` and `autoattack` beside bare loops; on a GPU with `-- --model W.pt --data FIRST1000.npz
--flags FLAGS.npy`, else on the demonstration model), `estimate` (cost told beforehand), `memory` (100,000 samples) and
`scaling` (two workers measured, up to 1,024 simulated; needs the extra `ray`). Without parts: all of them. Each writes
into benchmarks/results. A part that fails does not keep the others from running; the exit code says so. On a GPU:
`benchmarks/gpu.py`, which measures everything that needs one.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PARTS = ("speed", "estimate", "memory", "scaling")


def main() -> int:
    own, given = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, given = own[:cut], own[cut + 1 :]
    unknown = sorted(set(own) - set(PARTS))
    if unknown:
        sys.exit(f"unknown parts: {', '.join(unknown)}; choose among {', '.join(PARTS)}")
    failed = []
    for part in own or PARTS:
        print(f"== {part}", flush=True)
        options = given if part == "speed" else []
        if subprocess.run([sys.executable, str(HERE / f"{part}.py"), *options], cwd=HERE.parent).returncode:
            failed.append(part)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
