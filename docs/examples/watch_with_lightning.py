"""Train a deep GAT with Lightning and watch its gradients and its balance."""

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import equipoise as eq
from equipoise.integrations.lightning import RecorderCallback

EPOCHS = 20


class NodeClassifier(L.LightningModule):
    """Full-batch training on one graph: the one batch is the graph."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        (data,) = batch
        scores = self.model(data.x, data.edge_index)
        loss = F.cross_entropy(scores[data.train_mask], data.y[data.train_mask])
        self.log("train_loss", loss, batch_size=1)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


def main() -> eq.Recorder:
    """Returns the recorder; its frame has everything."""
    data = eq.load_dataset("synthetic-citation")
    model = eq.initialize_(eq.Stack("gatv2", [data.num_features, *[32] * 4, data.classes]), "bal-o")
    laws = eq.discover(model, torch.rand(20, data.num_features), torch.randint(0, 20, (2, 60)))

    rec = eq.Recorder(model, laws, every=5)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        callbacks=[RecorderCallback(rec)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NodeClassifier(model), DataLoader([data], collate_fn=list))
    return rec


if __name__ == "__main__":
    frame = main().frame()
    gradients = frame[frame.quantity == "gradient/features"]
    print(gradients.pivot(index="epoch", columns="layer", values="value").to_string(float_format="{:.1e}".format))
