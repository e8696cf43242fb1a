"""OLMo with position IDs, its compact path, its checkpoints, and devices."""

from olmo_sparsity.model.amx import leave_out_unusable_amx

leave_out_unusable_amx()  # before the first operation of oneDNN in this process
