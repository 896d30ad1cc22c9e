"""What the command line accepts, Python accepts: models and data by name, limits of queries, rankings of targets."""

from pathlib import Path
from typing import Any

import pytest
import torch

import brinell
from brinell import Execution, InputError, Linf, ModelError, PlanError, Run
from brinell.attacks import FGSM
from brinell.evaluation import coerce, plan
from brinell.models.demo import demo_net
from brinell.train import Recipe

FACTORY = "from brinell.models.demo import demo_net\n\ndef make():\n    return demo_net()\n\nready = demo_net()\n"


def evaluated(model: Any, data: Any = "demo", attacks: Any = "fgsm", n: int = 8, **more: Any) -> Run:
    data = coerce.as_problem(data, n)
    return brinell.evaluate(model, data, Linf(0.1), attacks, progress=False, **more)


def survivors(run: Run) -> list[int]:
    return run.survivors().tolist()


@pytest.mark.parametrize("factory", ["make", "ready"])
def test_a_function_in_a_file_is_a_model(factory: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FACTORY)
    run = evaluated(f"{tmp_path}/mine.py:{factory}")
    assert survivors(run) == survivors(evaluated(demo_net()))


def test_a_name_of_the_zoo_is_a_model() -> None:
    run = evaluated("fashion-mnist/Linf/Demo")
    assert run.robust_accuracy.n == 8


def test_a_folder_of_a_training_is_a_model(tmp_path: Path) -> None:
    options: Any = {"recipe": Recipe(epochs=1, batch=16), "validation": 0, "progress": False}
    brinell.train.fit("demo", brinell.data.load("demo", 16), Linf(0.1), "standard", out=tmp_path / "trained", **options)
    for name in (tmp_path / "trained", str(tmp_path / "trained")):
        assert coerce.as_classifier(name).fingerprint == brinell.train.load(tmp_path / "trained").fingerprint


def test_what_names_no_model_is_refused_with_what_to_write() -> None:
    with pytest.raises(ModelError, match=r"FILE\.py:FACTORY.*Did you mean 'demo'"):
        evaluated("dmeo")


def test_data_have_options_and_parts(tmp_path: Path) -> None:
    whole = brinell.data.load("demo", 20)
    torch.testing.assert_close(coerce.as_problem("demo", 20, "2/4").x, whole[5:10].x)
    assert coerce.as_problem((whole.x, whole.y), 3).ids.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="options among"):
        coerce.as_problem("demo,colour=red")
    with pytest.raises(InputError, match="a part such as 2/4"):
        coerce.as_problem("demo", 8, "5/4")


def test_names_of_attacks_are_a_plan() -> None:
    run = evaluated("demo", attacks=["apgd-dlr", "pgd-ce"])
    assert run.attacks == ["apgd-dlr", "pgd-ce"]


def test_queries_are_limited() -> None:
    run = evaluated("demo", attacks="square", queries=20)
    rows = run.rows()
    assert max(rows["forwards"].to_pylist()) <= 20 and run.identity.plan.name == "square, 20 queries"
    told = brinell.estimate("demo", brinell.data.load("demo", 8), Linf(0.1), "square", queries=20)
    assert told.forwards <= 8 * 21


@pytest.mark.parametrize("by", ["fgsm", FGSM()])
def test_targets_are_ranked(by: Any) -> None:
    run = evaluated("demo", attacks="mm3-f10", n=4, rank_by=by, rank_eps="6/255")
    assert run.identity.plan.name == "mm3-f10, targets ranked by fgsm-ce at 6/255"


def test_a_radius_needs_a_ranking() -> None:
    with pytest.raises(PlanError, match="rank_by together with rank_eps"):
        evaluated("demo", attacks="mm3", rank_eps=0.1)


def test_options_of_execution_are_one_object_or_keywords(tmp_path: Path) -> None:
    by_keywords = evaluated("demo", attacks="pgd20", seed=3, slots=4)
    by_object = evaluated("demo", attacks="pgd20", execution=Execution(seed=3, slots=4))
    columns = ["sample_id", "attack", "broken", "adv_margin", "forwards", "seed"]
    assert by_keywords.rows().select(columns).equals(by_object.rows().select(columns))
    with pytest.raises(InputError, match="got both"):
        evaluated("demo", seed=3, execution=Execution(slots=4))
    for wrong in ({"seed": True}, {"seed": 2**63}, {"slots": 0}, {"slots": 1.5}):
        with pytest.raises(InputError):
            Execution(**wrong)  # type: ignore[arg-type]


def test_the_module_of_the_plan_can_be_imported() -> None:
    import brinell.evaluation.plan as module

    assert module is plan and {"audited", "limited", "ranked", "adapt"} <= set(vars(module))
