"""The command `brinell train`: adversarial training."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import add_row, make_table, percent, print_lines, print_table
from brinell.core.dataset import warn_if_fewer
from brinell.core.threat import threat
from brinell.errors import InputError, ModelError, PlanError
from brinell.models.networks import NETWORKS
from brinell.report.facts import proportion
from brinell.train.fit import CHECKPOINT_EVERY, Trained, fit
from brinell.train.folder import is_training
from brinell.train.methods import METHODS, Method, as_method
from brinell.train.model import network_for
from brinell.train.recipe import Recipe
from brinell.train.samples import TrainingSamples, as_samples

R = Recipe()


def command(
    *,
    model: Annotated[
        str, typer.Option("--model", "-m", help=f"{', '.join(NETWORKS)} (untrained), or FILE.py:FACTORY.")
    ],
    data: Annotated[
        str,
        typer.Option("--data", "-d", help="FILE.npz or FILE.safetensors with x and y, or a folder of CIFAR or MNIST."),
    ],
    eps: options.Eps,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for weights, checkpoint and training curve.")],
    norm: options.Norm = "Linf",
    method: Annotated[str, typer.Option(help=f"Training method: {', '.join(METHODS)}.")] = "pgd",
    steps: Annotated[int | None, typer.Option(help="Attack steps of the method; default: as published.")] = None,
    rel_step: Annotated[float | None, typer.Option(help="Step size of the attack, as a multiple of eps.")] = None,
    beta: Annotated[float | None, typer.Option(help="Weight of the robust loss in TRADES.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = R.epochs,
    batch: Annotated[int, typer.Option("--batch", "--batch-size", help="Batch size.")] = R.batch,
    optimiser: Annotated[str, typer.Option("--optimiser", "--optimizer", help="sgd or adamw.")] = R.optimiser,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: 0.1 (sgd), 0.001 (adamw).")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of sgd.")] = R.momentum,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Use Nesterov momentum.")] = False,
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay; default: 0.0002 (sgd), 0.01 (adamw).")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="Learning-rate schedule: multistep, one-cycle or constant.")
    ] = R.schedule,
    anneal: Annotated[str, typer.Option(help="Shape of one-cycle: cosine or linear.")] = R.anneal,
    label_smoothing: Annotated[float, typer.Option(help="Label smoothing.")] = 0.0,
    clip: Annotated[float, typer.Option(help="Clip the gradient norm to this value; 0: no clipping.")] = 0.0,
    ramp: Annotated[float, typer.Option(help="Epochs over which the radius grows from zero to eps.")] = 0.0,
    average: Annotated[float, typer.Option(help="Decay of the weight average (EMA); 0: none.")] = R.average,
    crop: Annotated[int, typer.Option(help="Padding of random crops in pixels; 0: no crops.")] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Flip images horizontally at random.")] = False,
    mean: Annotated[
        str | None, typer.Option(help="Normalisation inside the network: means, e.g. 0.49,0.48,0.45.")
    ] = None,
    std: Annotated[str | None, typer.Option(help="Normalisation inside the network: standard deviations.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes; default: from the labels.")] = None,
    validation: Annotated[
        int | None, typer.Option(help="Samples held out for validation; default: a tenth, at most 1,000; 0: none.")
    ] = None,
    validation_data: Annotated[str | None, typer.Option(help="Separate data for validation.")] = None,
    plan: Annotated[str, typer.Option(help="Plan that measures the robust accuracy after every epoch.")] = "fast",
    patience: Annotated[int | None, typer.Option(help="Stop after this many epochs without improvement.")] = None,
    n: options.N = None,
    precision: Annotated[str, typer.Option(help="Precision of the training: float32 or bfloat16.")] = R.precision,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the network with torch.compile.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed of weights, order, crops and noise.")] = 0,
    device: options.Device = None,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = CHECKPOINT_EVERY,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted training in --out.")] = False,
    output: options.PrintFlags,
) -> None:
    """Train a model to be robust against a threat."""
    samples = _first(as_samples(data), n)
    recipe = Recipe(
        epochs=epochs, batch=batch, optimiser=optimiser, lr=lr, momentum=momentum, nesterov=nesterov,
        weight_decay=weight_decay, schedule=schedule, anneal=anneal, label_smoothing=label_smoothing, clip=clip,
        ramp=ramp, average=average, crop=crop, flip=flip, precision=precision, compile=compile, patience=patience,
        seed=seed,
    )  # fmt: skip
    trained = fit(
        _model(model, samples, classes, mean, std), samples, threat(norm, eps), _method(method, steps, rel_step, beta),
        recipe, out=out, resume=resume, validation=_validation(validation, validation_data), plan=plan, device=device,
        checkpoint_every=checkpoint_every, progress=output.progress,
    )  # fmt: skip
    output.print(lambda: as_json(trained), lambda console: show(trained, console))


def _validation(held_out: int | None, data: str | None) -> Any:
    if held_out is not None and data is not None:
        raise InputError(expected="--validation or --validation-data", got="both", remedy="Omit one of the two.")
    return held_out if data is None else data


def _first(samples: TrainingSamples, n: int | None) -> TrainingSamples:
    if n is not None and n < 1:
        raise InputError(expected="n of at least 1", got=f"{n}", remedy="Omit --n for all samples.")
    if n is not None:
        warn_if_fewer(n, len(samples))
    return TrainingSamples(samples.x[:n], samples.y[:n], samples.ids[:n], samples.name)


def _numbers(text: str | None, what: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(v) for v in text.split(","))
    except ValueError:
        raise InputError(
            expected=f"{what} as numbers separated by commas", got=repr(text), remedy="Write e.g. 0.49,0.48,0.45."
        ) from None


def _model(spec: str, samples: TrainingSamples, classes: int | None, mean: str | None, std: str | None) -> Any:
    if spec in NETWORKS:
        network = network_for(spec, samples, classes)
        return replace(network, mean=_numbers(mean, "--mean"), std=_numbers(std, "--std"))
    if classes is not None or mean is not None or std is not None:
        raise InputError(
            expected=f"--classes, --mean and --std only with a built-in network ({', '.join(NETWORKS)})",
            got=f"--model {spec}",
            remedy="Omit these options; your function can return brinell.wrap(net, mean=…, std=…).",
        )
    if ":" not in spec and not is_training(spec):
        raise ModelError(
            expected=f"a network ({', '.join(NETWORKS)}), FILE.py:FACTORY or an output folder of `brinell train`",
            got=repr(spec),
            remedy="Write e.g. --model resnet18, or --model my_model.py:make_net.",
        )
    return load.model(spec)


def _method(name: str, steps: int | None, rel_step: float | None, beta: float | None) -> Method:
    """Return the named training method; steps, rel_step and beta replace its parameters unless they are None."""
    method = as_method(name)
    changes = {k: v for k, v in (("steps", steps), ("rel_step", rel_step)) if v is not None}
    missing = [k for k in changes if not hasattr(method.attack, k)] + ["beta"] * (beta is not None and not method.beta)
    if missing:
        raise PlanError(
            expected=f"a training method with the parameter {' and '.join(missing)}",
            got=f"the method {name}",
            remedy=f"Omit --{missing[0].replace('_', '-')}.",
        )
    attack: Any = method.attack
    changed = replace(method, attack=replace(attack, **changes)) if changes else method
    changed = changed if beta is None else replace(changed, beta=beta)
    values = ", ".join(f"{k} = {v}" for k, v in {**changes, **({} if beta is None else {"beta": beta})}.items())
    return replace(changed, description=f"{method.description}; here {values}") if values else changed


def as_json(trained: Trained) -> dict[str, Any]:
    """Return the folder, the best epoch, its accuracies and the training curve for JSON."""
    best = trained.best
    clean, robust = best.clean_accuracy, best.robust_accuracy
    return {
        "path": str(trained.path),
        "best_epoch": best.epoch,
        "clean_accuracy": None if clean is None else proportion(clean),
        "robust_accuracy": None if robust is None else proportion(robust),
        "curve": [row.to_json() for row in trained.curve],
    }


def show(trained: Trained, console: Console) -> None:
    """Print the training curve as a table with the best epoch marked, then the best epoch and the folder."""
    columns = ("epoch", "lr", "loss", "n", "clean, %", "robust, %", "seconds")
    table = make_table("percent with 95 % intervals", [f">{name}" for name in columns])
    for row in trained.curve:
        clean, robust = row.clean_accuracy, row.robust_accuracy
        validation = (
            ["", "", ""] if clean is None or robust is None else [str(robust.n), percent(clean), percent(robust)]
        )
        best = row is trained.best and robust is not None
        cells = [str(row.epoch), f"{row.lr:.2g}", f"{row.loss:.3f}", *validation, f"{row.seconds:.0f}"]
        add_row(table, cells, style="bold cyan" if best else None)
    print_table(table, console)
    accuracy = trained.best.robust_accuracy
    measured = "" if accuracy is None else f": robust accuracy {accuracy} on validation"
    print_lines(console, f"Best epoch: {trained.best.epoch}{measured}.", f"Training: {trained.path}")
