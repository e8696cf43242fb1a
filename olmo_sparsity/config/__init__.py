"""The configuration of an experiment: sections of keys, YAML files, and overrides."""

from olmo_sparsity.config.experiment import Config as Config
from olmo_sparsity.config.experiment import fingerprint as fingerprint
from olmo_sparsity.config.experiment import to_dict as to_dict
from olmo_sparsity.config.experiment import with_keys as with_keys
from olmo_sparsity.config.measuring import InfluenceConfig as InfluenceConfig
from olmo_sparsity.config.pretrained import PretrainedConfig as PretrainedConfig
from olmo_sparsity.config.sections import ContextConfig as ContextConfig
from olmo_sparsity.config.sections import DataConfig as DataConfig
from olmo_sparsity.config.sections import ModelConfig as ModelConfig
from olmo_sparsity.config.sections import PoseConfig as PoseConfig
from olmo_sparsity.config.synthetic import SyntheticConfig as SyntheticConfig
from olmo_sparsity.config.training import SCHEDULERS as SCHEDULERS
from olmo_sparsity.config.training import TRACKERS as TRACKERS
from olmo_sparsity.config.training import TrainingConfig as TrainingConfig
