"""Tasks: loss and metrics, one LightningModule per task, with the network as an argument."""
