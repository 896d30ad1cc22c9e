"""brinell evaluate."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from brinell.cli import load, options
from brinell.cli.show import as_json, show, show_estimate
from brinell.core.threat import threat
from brinell.errors import InputError, PlanError
from brinell.evaluate.adapt import limited, ranked
from brinell.evaluate.estimate import estimate
from brinell.evaluate.evaluate import evaluate
from brinell.evaluate.inputs import as_plan
from brinell.evaluate.presets import chain, reference
from brinell.evaluate.work import IN_PROCESS
from brinell.launch.ray import GPU, Ray
from brinell.reliability.tested import NOT_MADE, WithProbe, WithTest


def command(
    model: options.Model,
    data: options.Data,
    eps: Annotated[str, typer.Option(help="Radius, e.g. 8/255; inputs live in [0, 1].")],
    norm: Annotated[str, typer.Option(help="Linf, L2 or L1.")] = "Linf",
    plan: Annotated[str, typer.Option(help="See brinell plans.")] = "autoattack",
    attacks: Annotated[str | None, typer.Option(help="A chain instead of a plan, e.g. apgd-ce,fab-t.")] = None,
    n: options.N = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the Run; default: a temporary one.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted Run.")] = False,
    seed: Annotated[int, typer.Option(help="A sample's outcome depends on this and its id.")] = 0,
    slots: Annotated[int | None, typer.Option(help="Samples in flight; changes speed, not outcomes.")] = None,
    precision: Annotated[
        str, typer.Option(help="Of the attack's questions: float32, tf32, bfloat16, or auto.")
    ] = "float32",
    execution: Annotated[str, typer.Option(help="auto, eager, graph (CUDA) or compile.")] = "auto",
    device: options.Device = None,
    part: Annotated[str | None, typer.Option(help="Only this part of the data, e.g. 2/4; see brinell merge.")] = None,
    individual: Annotated[bool, typer.Option("--individual", help="Every attack on every sample.")] = False,
    queries: Annotated[
        int | None, typer.Option(help="Queries per sample in all, for plans without gradients such as blackbox.")
    ] = None,
    rank_by: Annotated[
        str | None, typer.Option(help="Rank the targets where this attack ends: fgsm or pgd20; default: clean input.")
    ] = None,
    rank_eps: Annotated[str | None, typer.Option(help="Radius for that attack, e.g. 6/255; default: --eps.")] = None,
    audit: Annotated[
        float | None, typer.Option(help="Share of the survivors that the plan fast attacks at full strength; 0: none.")
    ] = None,
    escalate: Annotated[
        bool, typer.Option("--escalate", help="Full plan on all survivors if the audit objects or a check warns.")
    ] = False,
    expected_clean_accuracy: Annotated[
        float | None, typer.Option(help="Stop if clean accuracy differs, e.g. 0.85.")
    ] = None,
    no_images: Annotated[bool, typer.Option("--no-images", help="Verify adversarials and store none of them.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would cost, from a probe of two seconds at most.")
    ] = False,
    workers: Annotated[
        str | None, typer.Option(help="Processes on the CPU, e.g. 4; gpu: one per GPU; gpu:4: on four GPUs.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray cluster, e.g. auto; default: RAY_ADDRESS, or a new one."),
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Test the plan where an adversarial is known to exist; part of the verdict.")
    ] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Look for signs that the plan's first attack failed; part of the verdict.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack a model and report its robust accuracy."""
    chosen = chain(attacks.split(",")) if attacks else as_plan(plan)
    if rank_by is not None:
        chosen = ranked(chosen, reference(rank_by), rank_eps)
    elif rank_eps is not None:
        raise PlanError(
            expected="--rank-by together with --rank-eps", got="--rank-eps alone", remedy="Add e.g. --rank-by pgd20."
        )
    chosen = chosen if queries is None else limited(chosen, queries)
    if probe and chosen.draws > 1:
        raise PlanError(
            expected="--probe with an attack on a model that is not randomised",
            got=f"the plan {chosen.name}",
            remedy="Leave --probe out.",
        )
    classifier, problem, ball = load.model(model), load.data(data, n, part), threat(norm, eps)
    if dry_run:
        if workers is not None or ray is not None:
            raise InputError(
                expected="--dry-run for this process, which is what it can measure",
                got="--workers or --ray with it",
                remedy="Leave them out, and see brinell.launch.estimate for what several workers bring.",
            )
        told = estimate(
            classifier,
            problem,
            ball,
            chosen,
            out=out,
            resume=resume,
            seed=seed,
            slots=slots,
            precision=precision,
            execution=execution,
            device=device,
            individual=individual,
            audit=audit,
            escalate=escalate,
        )
        show_estimate(told, Console(), json)
        return
    shown = False if quiet else None
    run = evaluate(
        classifier,
        problem,
        ball,
        chosen,
        out=out,
        resume=resume,
        seed=seed,
        slots=slots,
        precision=precision,
        execution=execution,
        device=device,
        progress=shown,
        individual=individual,
        audit=audit,
        escalate=escalate,
        expected_clean_accuracy=expected_clean_accuracy,
        images=not no_images,
        launch=IN_PROCESS if workers is None and ray is None else Ray(workers=workers or GPU, address=ray),
        also=[w for w, wanted in ((WithTest(progress=shown), test), (WithProbe(progress=shown), probe)) if wanted],
    )
    for check in run.checks:
        if check["message"].startswith(NOT_MADE):
            typer.echo(f"{check['name']} {check['message']}", err=True)
    if json:
        typer.echo(as_json(run))
    else:
        show(run, Console())
