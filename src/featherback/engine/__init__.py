"""What runs everything: model files (`formats`), devices and kernels (`backend`), memory and limits (`host`)."""
