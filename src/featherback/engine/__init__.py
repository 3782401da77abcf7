"""The machine: tensors in files, devices and their kernels, memory, the host's files and limits."""
