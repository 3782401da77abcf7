"""The ground floor: files, names, options, registries and what is printed. It knows nothing of models."""
