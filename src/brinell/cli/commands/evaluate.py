"""The command `brinell evaluate`: attack a model and report its robust accuracy."""

from typing import Annotated, Any

import typer

from brinell.cli._shared import chosen, options
from brinell.cli._shared.run_output import next_commands, output_estimate, output_run, output_seeds, print_next
from brinell.cost.estimate import estimate
from brinell.errors import InputError, PlanError
from brinell.evaluation.evaluate import evaluate, evaluate_seeds
from brinell.reliability.attach import NOT_MADE, WithProbe, WithTest
from brinell.results.format.folders import AUTO


def command(
    *,
    target: options.TargetFlags,
    plan: options.Plan = "autoattack",
    attacks: options.Attacks = None,
    n: options.N = None,
    out: options.NamedOut = None,
    name: options.ModelName = None,
    resume: options.Resume = False,
    execution: options.ExecutionFlags,
    seeds: options.Seeds = None,
    part: Annotated[
        str | None, typer.Option(help="Evaluate one part of the data, e.g. 2/4. brinell merge joins the parts.")
    ] = None,
    individual: Annotated[
        bool,
        typer.Option("--individual", help="Run every attack on all correct samples; show one accuracy per attack."),
    ] = False,
    queries: Annotated[
        int | None, typer.Option(help="Query limit per sample, for plans without gradients such as blackbox.")
    ] = None,
    targets: Annotated[
        int | None, typer.Option(help="Number of target classes, for plans with targets such as mm3.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of attack steps, for plans such as mm3 or pgd20.")] = None,
    rel_step: Annotated[
        float | None, typer.Option(help="Step size as a multiple of eps, for plans such as mm3-f20 or pgd20.")
    ] = None,
    rank_by: Annotated[
        str | None,
        typer.Option(help="Rank target classes by the logits after fgsm or pgd20, or by linear distance (malt)."),
    ] = None,
    rank_eps: Annotated[
        str | None, typer.Option(help="Radius of the --rank-by attack, e.g. 6/255; default: --eps.")
    ] = None,
    audit: Annotated[
        str | None,
        typer.Option(
            help="Share of the survivors that fast draws for the full plan: 1/8, 0.125 or 12.5%; default: 0.005."
        ),
    ] = None,
    escalate: Annotated[
        bool | None,
        typer.Option(
            "--escalate/--no-escalate",
            help="Full plan on all survivors: also if a check warns or the audit is small; or never.",
        ),
    ] = None,
    adaptive: Annotated[
        bool,
        typer.Option("--adaptive", help="Probe the model and also attack around what hides its gradients."),
    ] = False,
    expected_clean_accuracy: Annotated[
        str | None, typer.Option(help="Stop if the clean accuracy differs from this share, e.g. 0.85 or 85%.")
    ] = None,
    no_images: Annotated[bool, typer.Option("--no-images", help="Verify adversarials but do not store them.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate the cost, from a trial of at most two seconds.")
    ] = False,
    workers: options.Workers = None,
    ray: options.RayAddress = None,
    test: Annotated[
        bool | None,
        typer.Option(
            "--test/--no-test",
            help="Add the full binarization test of the plan, or none; default: a small one if it costs at most 5 %.",
            show_default=False,
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Probe the first attack for signs of failure; it counts for the verdict.")
    ] = False,
    certify: Annotated[
        bool, typer.Option("--certify", help="Then prove survivors to be robust, as brinell certify does.")
    ] = False,
    output: options.PrintFlags,
) -> None:
    """Attack a model and report its robust accuracy."""
    chosen_plan = chosen.plan(plan, attacks)
    if probe and chosen_plan.draws > 1:
        raise PlanError(
            expected="--probe with a plan for deterministic models",
            got=f"the plan {chosen_plan.name} for randomised models",
            remedy="Omit --probe.",
        )
    inputs = (*target.load(n, part), chosen_plan)
    how: dict[str, Any] = {
        "out": AUTO if out is None else out, "resume": resume, "individual": individual, "escalate": escalate,
        "queries": queries, "targets": targets, "steps": steps, "rel_step": rel_step, "rank_by": rank_by,
        "rank_eps": rank_eps, "adaptive": adaptive,
        "audit": None if audit is None else options.share(audit, "--audit"), **execution.arguments(),
    }  # fmt: skip
    if dry_run:
        if workers is not None or ray is not None:
            raise InputError(
                expected="--dry-run without --workers and --ray, because it measures only this process",
                got="--workers or --ray",
                remedy="Omit --workers and --ray, or call brinell.launch.estimate, which predicts the speed-up.",
            )
        output_estimate(estimate(*inputs, **how), output)
        return
    if expected_clean_accuracy is not None:
        how["expected_clean_accuracy"] = options.share(expected_clean_accuracy, "--expected-clean-accuracy")
    extras = ((WithTest(progress=output.progress), test), (WithProbe(progress=output.progress), probe))
    how |= {
        "name": name, "progress": output.progress, "images": not no_images,
        "launch": chosen.launcher(workers, ray), "also": [extra for extra, wanted in extras if wanted],
        "test": None if test else test, "certify": certify,
    }  # fmt: skip
    if seeds is not None:
        output_seeds(evaluate_seeds(*inputs, seeds=seeds, **how), output)
        return
    run = evaluate(*inputs, **how)
    for check in run.checks:
        if check["message"].startswith(NOT_MADE):
            typer.echo(f"{check['name']} {check['message']}", err=True)
    output_run(run, output)
    if not output.json:
        print_next(next_commands(run, target.model, target.data))
