"""brinell train."""

import json as json_format
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import counts, put, tell
from brinell.core.threat import threat
from brinell.errors import InputError, ModelError, PlanError
from brinell.models.networks import NETWORKS
from brinell.train.fit import CHECKPOINT_EVERY, Trained, fit
from brinell.train.folder import is_training
from brinell.train.methods import METHODS, Method, as_method
from brinell.train.model import network_for
from brinell.train.recipe import Recipe
from brinell.train.samples import TrainingSamples, as_samples

R = Recipe()


def command(
    model: Annotated[
        str, typer.Option("--model", "-m", help=f"{', '.join(NETWORKS)} (untrained), or FILE.py:FACTORY.")
    ],
    data: Annotated[
        str,
        typer.Option("--data", "-d", help="FILE.npz or FILE.safetensors with x and y, or a folder of CIFAR or MNIST."),
    ],
    eps: options.Eps,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the training.")],
    norm: options.Norm = "Linf",
    method: Annotated[str, typer.Option(help=", ".join(METHODS))] = "pgd",
    steps: Annotated[int | None, typer.Option(help="Steps of the method's attack; default: as published.")] = None,
    rel_step: Annotated[float | None, typer.Option(help="Length of its fixed steps in radii.")] = None,
    beta: Annotated[float | None, typer.Option(help="Weight of the divergence in TRADES.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = R.epochs,
    batch: Annotated[int, typer.Option(help="Samples per step.")] = R.batch,
    optimiser: Annotated[str, typer.Option(help="sgd or adamw.")] = R.optimiser,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default 0.1 (sgd), 0.001 (adamw).")] = None,
    momentum: Annotated[float, typer.Option(help="Of sgd.")] = R.momentum,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")] = False,
    weight_decay: Annotated[float | None, typer.Option(help="Default 0.0002 (sgd), 0.01 (adamw).")] = None,
    schedule: Annotated[str, typer.Option(help="multistep, one-cycle or constant.")] = R.schedule,
    anneal: Annotated[str, typer.Option(help="Shape of one-cycle: cosine or linear.")] = R.anneal,
    label_smoothing: Annotated[float, typer.Option(help="Share of the label spread over all classes.")] = 0.0,
    clip: Annotated[float, typer.Option(help="Largest norm of the gradient; 0: any.")] = 0.0,
    ramp: Annotated[float, typer.Option(help="Epochs over which the radius grows from zero.")] = 0.0,
    average: Annotated[float, typer.Option(help="Decay of the weights' running average; 0: none.")] = R.average,
    crop: Annotated[int, typer.Option(help="Random crops: pixels of padding.")] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Random horizontal flips.")] = False,
    mean: Annotated[str | None, typer.Option(help="Normalisation inside the network, e.g. 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, typer.Option(help="Its deviations.")] = None,
    classes: Annotated[int | None, typer.Option(help="Classes of the network; default: as many as labels.")] = None,
    validation: Annotated[
        int | None, typer.Option(help="Samples held out; default: a tenth, at most 1,000; 0: none.")
    ] = None,
    validation_data: Annotated[str | None, typer.Option(help="A file of its own to validate on.")] = None,
    plan: Annotated[str, typer.Option(help="Measures robust accuracy after every epoch; see brinell plans.")] = "fast",
    patience: Annotated[int | None, typer.Option(help="Epochs without a better one after which to end.")] = None,
    n: options.N = None,
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = R.precision,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the network first.")] = False,
    seed: Annotated[int, typer.Option(help="Decides order, crops, noise and initial weights.")] = 0,
    device: options.Device = None,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = CHECKPOINT_EVERY,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model to withstand a threat."""
    samples = _first(as_samples(data), n)
    recipe = Recipe(
        epochs=epochs, batch=batch, optimiser=optimiser, lr=lr, momentum=momentum, nesterov=nesterov,
        weight_decay=weight_decay, schedule=schedule, anneal=anneal, label_smoothing=label_smoothing, clip=clip,
        ramp=ramp, average=average, crop=crop, flip=flip, precision=precision, compile=compile, patience=patience,
        seed=seed,
    )  # fmt: skip
    trained = fit(
        _model(model, samples, classes, mean, std),
        samples,
        threat(norm, eps),
        _method(method, steps, rel_step, beta),
        recipe,
        out=out,
        resume=resume,
        validation=_validation(validation, validation_data),
        plan=plan,
        device=device,
        checkpoint_every=checkpoint_every,
        progress=False if quiet else None,
    )
    if json:
        typer.echo(as_json(trained))
    else:
        show(trained, Console())


def _validation(held_out: int | None, data: str | None) -> Any:
    if held_out is not None and data is not None:
        raise InputError(
            expected="--validation or --validation-data", got="both", remedy="Hold samples out, or give others."
        )
    return held_out if data is None else data


def _first(samples: TrainingSamples, n: int | None) -> TrainingSamples:
    if n is not None and n < 1:
        raise InputError(expected="n of at least 1", got=f"{n}", remedy="Leave it out for all samples.")
    return TrainingSamples(samples.x[:n], samples.y[:n], samples.ids[:n], samples.name)


def _numbers(text: str | None, what: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(v) for v in text.split(","))
    except ValueError:
        raise InputError(
            expected=f"{what} as numbers with commas between", got=repr(text), remedy="E.g. 0.49,0.48,0.45."
        ) from None


def _model(spec: str, samples: TrainingSamples, classes: int | None, mean: str | None, std: str | None) -> Any:
    if spec in NETWORKS:
        found = network_for(spec, samples, classes)
        return replace(found, mean=_numbers(mean, "--mean"), std=_numbers(std, "--std"))
    if classes is not None or mean is not None or std is not None:
        raise InputError(
            expected=f"--classes, --mean and --std with a network ({', '.join(NETWORKS)})",
            got=spec,
            remedy="Let your function build the module with them, or return brinell.wrap(net, mean=…, std=…).",
        )
    if ":" not in spec and not is_training(spec):
        raise ModelError(
            expected=f"a model as {', '.join(NETWORKS)}, FILE.py:FACTORY or the folder of a training",
            got=repr(spec),
            remedy="E.g. --model resnet18, or --model my_model.py:make_net.",
        )
    return load.model(spec)


def _method(name: str, steps: int | None, rel_step: float | None, beta: float | None) -> Method:
    """The method with other numbers in its attack."""
    method = as_method(name)
    changes = {k: v for k, v in (("steps", steps), ("rel_step", rel_step)) if v is not None}
    lacking = [k for k in changes if not hasattr(method.attack, k)] + ["beta"] * (beta is not None and not method.beta)
    if lacking:
        raise PlanError(
            expected=f"a method with {' and '.join(lacking)}",
            got=name,
            remedy=f"Leave --{lacking[0].replace('_', '-')} out.",
        )
    attack: Any = method.attack
    changed = replace(method, attack=replace(attack, **changes)) if changes else method
    changed = changed if beta is None else replace(changed, beta=beta)
    told = ", ".join(f"{k} = {v}" for k, v in {**changes, **({} if beta is None else {"beta": beta})}.items())
    return replace(changed, description=f"{method.description}; here {told}") if told else changed


def as_json(trained: Trained) -> str:
    """Everything a script needs."""
    best = trained.best
    return json_format.dumps(
        {
            "path": str(trained.path),
            "best_epoch": best.epoch,
            "clean_accuracy": counts(best.clean_accuracy),
            "robust_accuracy": counts(best.robust_accuracy),
            "curve": [row.to_json() for row in trained.curve],
        },
        indent=2,
    )


def show(trained: Trained, console: Console) -> None:
    """The curve as a table, the best epoch marked, and what to do next."""
    table = Table(title=Text("percent with 95 % intervals"), box=box.ROUNDED, title_justify="left")
    for name in ("epoch", "lr", "loss", "n", "clean, %", "robust, %", "seconds"):
        table.add_column(name, justify="right")
    for row in trained.curve:
        clean, robust = row.clean_accuracy, row.robust_accuracy
        cells = [str(row.epoch), f"{row.lr:.2g}", f"{row.loss:.3f}"]
        cells += ["", "", ""] if clean is None or robust is None else [
            str(robust.n), *(f"{100 * p.value:.1f} [{100 * p.low:.1f}, {100 * p.high:.1f}]" for p in (clean, robust)),
        ]  # fmt: skip
        # As text: an interval's brackets are no markup.
        cells = [Text(c) for c in (*cells, f"{row.seconds:.0f}")]  # type: ignore[misc]
        table.add_row(*cells, style="bold cyan" if row is trained.best and robust is not None else None)
    put(table, console)
    best = trained.best
    facts = "" if best.robust_accuracy is None else f": robust accuracy {best.robust_accuracy} on validation"
    tell(console, f"Model of epoch {best.epoch}{facts}.", f"Training: {trained.path}")
