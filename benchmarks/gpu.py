"""Every table that needs a GPU, part by part, by one command.

Usage: python benchmarks/gpu.py --weights W.pt --first FIRST1000.npz --flags FLAGS.npy [--train TRAIN] [--keep FOLDER]
       [--parts speed fast ...] [--seconds 540]

W.pt are the CIFAR-10 network's weights, FIRST1000.npz its test images (x in 8 bits, y), FLAGS.npy the outcomes of the
reference, TRAIN a .npz or the folder cifar-10-batches-py. Parts, each with its own limit of seconds: see `parts`. What
is finished when the time is over is kept: Runs and trainings go on from `--keep` at the next call, tables are in OUT.
A part that fails or takes too long does not keep the others from running; the exit code says so.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
BEST = ["--precision", "bfloat16", "--execution", "compile"]


def parts(a: argparse.Namespace) -> dict[str, tuple[int, list[str]]]:
    """For every part its limit and its command."""
    cifar, keep, out = ["--model", a.weights, "--data", a.first], Path(a.keep), Path(a.out)
    ways = ["--ways", "tf32:graph", "tf32:compile", "bfloat16:compile"]
    speed = ["speed.py", *cifar, "--flags", a.flags, "--out", str(out / "speed_gpu")]
    precise = ["--precision", "tf32", "--against-precision", "bfloat16", "--execution", "compile"]
    curves = ["curves_cifar.py", *cifar, *precise, "--runs", str(keep / "curves"), "--out", str(out / "curves_cifar")]
    train = ["train_cifar.py", "--data", str(a.train), "--test", a.first, "--out", str(keep / "train"), "--compile",
             "--validation", "0", "--test-precision", "bfloat16", "--test-execution", "compile",
             "--epochs", str(a.epochs)]  # fmt: skip
    tests = ["--plans", "autoattack", "mm+", "pgd20", "cw20"]
    tested = ["--n", "512", "--eps", "8/255", "--device", "cuda"]
    return {
        "throughput": (180, [*speed, "--only", "throughput", *ways]),
        "fast": (150, [*speed, "--only", "fast", *ways]),
        "tf32": (240, [*speed, "--only", "autoattack", "--ways", "tf32:compile"]),
        "bfloat16": (240, [*speed, "--only", "autoattack", "--ways", "bfloat16:compile"]),
        "graph": (120, [*speed, "--only", "autoattack", "--ways", "tf32:graph"]),
        "overhead": (180, [*speed, "--only", "overhead", "--ways", "tf32:graph", "bfloat16:compile"]),
        "mm": (300, ["mm_cifar.py", *cifar, *BEST, "--runs", str(keep / "mm"), "--out", str(out / "mm_cifar")]),
        "active": (180, ["active_test.py", *cifar, *tested, "--alone", "64", "--out", str(out / "active_test")]),
        "crippled": (180, ["active_crippled.py", *cifar, "--eps", "8/255", "--n", "64", "--device", "cuda",
                           "--out", str(out / "active_crippled")]),
        "corruptions": (60, ["corruptions.py", "--out", str(out)]),
        # Some epochs more, which it takes to get there.
        "trades-at": (480, [*train, "--epochs", str(a.epochs + 8), "--methods", "trades", *tests]),
        "pgd-at": (480, [*train, "--methods", "pgd", *tests]),
        "mm-at": (540, [*train, "--methods", "mm3-f10", *tests]),
        "curves-linf": (540, [*curves, "--norm", "Linf"]),
        "curves-l2": (540, [*curves, "--norm", "L2"]),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("weights", "first", "flags"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--train")
    parser.add_argument("--epochs", type=int, default=22)
    parser.add_argument("--keep", default="build/gpu", help="a folder for Runs and trainings")
    parser.add_argument("--out", default=str(HERE / "results"), help="a folder for the tables")
    parser.add_argument("--parts", nargs="+")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all parts together")
    args = parser.parse_args()
    known = parts(args)
    chosen = args.parts or [p for p in known if args.train or not p.endswith("-at")]
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        sys.exit(f"unknown parts: {', '.join(unknown)}; choose among {', '.join(known)}")
    end, failed = time.monotonic() + args.seconds, []
    for part in chosen:
        limit, (script, *options) = known[part]
        left = min(limit, end - time.monotonic())
        print(f"== {part}, at most {max(left, 0):.0f} s", flush=True)
        begun = time.monotonic()
        try:
            code = subprocess.run([sys.executable, str(HERE / script), *options], timeout=max(left, 1)).returncode
        except subprocess.TimeoutExpired:
            code = "time over"
        print(f"== {part}: {code}, {time.monotonic() - begun:.0f} s", flush=True)
        if code:
            failed.append(part)
    if failed:
        print(f"not finished: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
