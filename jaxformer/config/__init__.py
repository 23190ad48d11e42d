"""The configuration of an experiment, its files and its command-line options."""

from jaxformer.config.experiment import Config, load_config, validate
from jaxformer.config.train import DPO, KTO, Distillation, TrainConfig

__all__ = ["DPO", "KTO", "Config", "Distillation", "TrainConfig", "load_config", "validate"]
