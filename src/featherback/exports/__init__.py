"""What leaves Featherback: adapters in other programs' file formats, models with an adapter merged, trained models.

`formats` reads and writes adapter files. `targets` prepares a folder for one other program, such as Ollama.
"""
