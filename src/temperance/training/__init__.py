"""Training for honest confidence: networks, the training loop, and classifiers that are trained again."""
