"""The loggers and the Lightning callback with the real libraries."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brinell
from brinell.integrations import MLflow, RobustAccuracy, TensorBoard, lightning_callback, numbers
from brinell.models.demo import demo_net
from brinell.results import Run

pytestmark = [pytest.mark.adapters, pytest.mark.filterwarnings("ignore")]
DATA = brinell.data.load("demo", 16)


@pytest.fixture
def run() -> Run:
    return brinell.evaluate("demo", DATA, brinell.Linf(0.1), "fgsm", progress=False)


def test_tensorboard_reads_back_what_was_written(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    TensorBoard(tmp_path)(run, 4)
    events = EventAccumulator(str(tmp_path)).Reload()
    for name, value in numbers(run).items():
        (event,) = events.Scalars(name)
        assert event.step == 4 and event.value == pytest.approx(value)


def test_mlflow_reads_back_what_was_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("tests")
    with mlflow.start_run() as active:
        MLflow()(run, 4)
    stored = mlflow.get_run(active.info.run_id).data
    assert stored.metrics == pytest.approx(numbers(run))
    assert stored.tags["brinell/verdict"] == run.verdict.level


def test_lightning_trains_and_logs(tmp_path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning.pytorch")

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = demo_net().train().requires_grad_(True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Any:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    monitor = RobustAccuracy(DATA, brinell.Linf(0.1), every=2, n=8, plan="fgsm")
    trainer = lightning.Trainer(
        max_epochs=2, callbacks=[lightning_callback(monitor)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, accelerator="cpu", default_root_dir=tmp_path,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(DATA.x, DATA.y), batch_size=8)
    trainer.fit(Net(), loader)
    (measured,) = monitor.history
    assert measured.epoch == 1
    assert float(trainer.callback_metrics["robust_accuracy"]) == pytest.approx(measured.robust_accuracy.value)
