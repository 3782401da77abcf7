"""Write adapters in other programs' formats, models with an adapter merged into them, and trained models.

`formats` reads and writes adapter files. `targets` prepares the files for one other program, such as Ollama.
"""
