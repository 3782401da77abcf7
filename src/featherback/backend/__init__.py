"""The device's face: operations on arrays, scratch memory, stored matrices. `cpu` computes, `counting` only counts."""
