"""What a network is trained for and evaluated by: one LightningModule per task, the network being an argument."""
