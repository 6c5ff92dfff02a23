"""Training: settings, passes, the trainer, and the run folder."""
