"""The machine the program runs on: files mapped, paged and streamed, its memory and its limits. Never a device's business."""
