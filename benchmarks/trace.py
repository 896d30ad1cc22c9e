"""Trace a small evaluation: how deep is the model call, and how many modules run in one attack step?

Method: run `pgd20` on 8 demo samples on the CPU under a profiling hook. Print the frames of brinell from
`brinell.evaluate` to the model's `forward`, and the modules of brinell that run during one attack step after warm-up.
An attack step is one call of the innermost function that both queries the model and calls `attack.step`.
Frames of torch and the generated methods of dataclasses do not count, nor does the wrapper of the model in a step.

Usage: python benchmarks/trace.py
"""

import sys
from pathlib import Path
from types import FrameType

import brinell
from brinell.data.demo import demo
from brinell.models.demo import demo_net

PACKAGE = Path(brinell.__file__).parent
SAMPLES, STEP = 8, 5  # the number of samples, and the attack step to report


def module_of(frame: FrameType) -> str | None:
    """Return the path of a frame's module inside the package, None for other frames."""
    file = frame.f_code.co_filename
    return file[len(str(PACKAGE)) + 1 :] if file.startswith(str(PACKAGE)) else None


def stack(frame: FrameType | None) -> list[FrameType]:
    """Return a frame of the package and those above it, innermost first."""
    above = [] if frame is None else stack(frame.f_back)
    return above if frame is None or module_of(frame) is None else [frame, *above]


class Tracer:
    """Notes the frames above the model and the modules that run inside every frame."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.modules: set[str] = set()
        self._steps = 0
        self._inside: dict[FrameType, set[str]] = {}
        self._queried: set[FrameType] = set()

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Handle one event of `sys.setprofile`."""
        module = module_of(frame)
        if module is None or module.startswith("models") or event not in ("call", "return"):
            return
        if event == "return":
            self._finish(frame)
            return
        self._inside[frame] = set()
        for modules in self._inside.values():
            modules.add(module)
        if frame.f_code.co_name == "step" and module.startswith("attacks"):
            self._steps += 1

    def _finish(self, frame: FrameType) -> None:
        modules = self._inside.pop(frame, set())
        stepped = any(m.startswith("attacks") for m in modules)
        if frame in self._queried and stepped and self._steps == STEP and not self.modules:
            self.modules = modules
        self._queried.discard(frame)

    def model_called(self, *_: object) -> None:
        """Handle a call of the model; a forward pre-hook."""
        frames = stack(sys._getframe(1))
        self._queried.update(frames)
        if self._steps == STEP - 1:
            self.frames = [f"{module_of(f)}: {f.f_code.co_name}" for f in reversed(frames)]


def main() -> None:
    """Print both numbers and what they count."""
    x, y = demo()
    net, tracer = demo_net().layers, Tracer()
    net.register_forward_pre_hook(tracer.model_called)
    sys.setprofile(tracer.profile)
    try:
        brinell.evaluate(net, (x[:SAMPLES], y[:SAMPLES]), brinell.Linf(0.1), "pgd20", progress=False)
    finally:
        sys.setprofile(None)
    print(f"{len(tracer.frames)} frames from evaluate to the model:", *tracer.frames, sep="\n  ")
    print(f"{len(tracer.modules)} modules in one attack step:", *sorted(tracer.modules), sep="\n  ")


if __name__ == "__main__":
    main()
