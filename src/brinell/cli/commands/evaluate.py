"""brinell evaluate."""

from typing import Annotated, Any

import typer
from rich.console import Console

from brinell.attacks.catalogue import reference
from brinell.cli._shared import chosen, load, options
from brinell.cli._shared.show import as_json, show, show_estimate
from brinell.core.plan import Plan
from brinell.core.threat import threat
from brinell.cost.estimate import estimate
from brinell.errors import InputError, PlanError
from brinell.evaluation.evaluate import evaluate
from brinell.evaluation.plan import limited, ranked
from brinell.reliability.attach import NOT_MADE, WithProbe, WithTest


def command(
    model: options.Model,
    data: options.Data,
    eps: options.Eps,
    norm: options.Norm = "Linf",
    plan: options.Plan = "autoattack",
    attacks: options.Attacks = None,
    n: options.N = None,
    out: options.Out = None,
    resume: options.Resume = False,
    seed: options.Seed = 0,
    slots: options.Slots = None,
    precision: options.Precision = "float32",
    execution: options.Execution = "auto",
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
    workers: options.Workers = None,
    ray: options.RayAddress = None,
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
    tried = _plan(chosen.plan(plan, attacks), rank_by, rank_eps, queries)
    if probe and tried.draws > 1:
        raise PlanError(
            expected="--probe with an attack on a model that is not randomised",
            got=f"the plan {tried.name}",
            remedy="Leave --probe out.",
        )
    what = load.model(model), load.data(data, n, part), threat(norm, eps), tried
    how: dict[str, Any] = {
        "out": out,
        "resume": resume,
        "seed": seed,
        "slots": slots,
        "precision": precision,
        "execution": execution,
        "device": device,
        "individual": individual,
        "audit": audit,
        "escalate": escalate,
    }
    if dry_run:
        _refuse_workers(workers, ray)
        show_estimate(estimate(*what, **how), Console(), json)
        return
    shown = False if quiet else None
    run = evaluate(
        *what,
        **how,
        progress=shown,
        expected_clean_accuracy=expected_clean_accuracy,
        images=not no_images,
        launch=chosen.launcher(workers, ray),
        also=[w for w, wanted in ((WithTest(progress=shown), test), (WithProbe(progress=shown), probe)) if wanted],
    )
    for check in run.checks:
        if check["message"].startswith(NOT_MADE):
            typer.echo(f"{check['name']} {check['message']}", err=True)
    if json:
        typer.echo(as_json(run))
    else:
        show(run, Console())


def _plan(plan: Plan, rank_by: str | None, rank_eps: str | None, queries: int | None) -> Plan:
    """The plan with the ranking of targets and the budget that were asked for."""
    if rank_by is not None:
        plan = ranked(plan, reference(rank_by), rank_eps)
    elif rank_eps is not None:
        raise PlanError(
            expected="--rank-by together with --rank-eps", got="--rank-eps alone", remedy="Add e.g. --rank-by pgd20."
        )
    return plan if queries is None else limited(plan, queries)


def _refuse_workers(workers: str | None, ray: str | None) -> None:
    if workers is not None or ray is not None:
        raise InputError(
            expected="--dry-run for this process, which is what it can measure",
            got="--workers or --ray with it",
            remedy="Leave them out, and see brinell.launch.estimate for what several workers bring.",
        )
