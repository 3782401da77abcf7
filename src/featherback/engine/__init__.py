"""The machinery below models: model files (`formats`), devices and kernels (`backend`), memory and limits (`host`)."""
