"""The configuration of an experiment, its files and its command-line options."""

from jaxformer.config.experiment import Config, load_config, validate
from jaxformer.config.train import DPO, Distillation, TrainConfig

__all__ = ["DPO", "Config", "Distillation", "TrainConfig", "load_config", "validate"]
