"""Models: OLMo with position IDs for training, any model of transformers for measuring; checkpoints and devices."""

import warnings

from olmo_sparsity.model.devices import leave_out_unusable_amx

leave_out_unusable_amx()  # before the first operation of oneDNN in this process

# Neither warning helps a user. olmo calls a function of omegaconf that newer versions have renamed; on Python 3.10, the storage
# client that cached_path brings recommends another Python.
warnings.filterwarnings("ignore", message="register_new_resolver", category=UserWarning)
warnings.filterwarnings("ignore", category=FutureWarning, module=r"google\.api_core")
