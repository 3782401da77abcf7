"""The machine the program runs on: files mapped, paged and streamed, memory and limits. Never a device's business."""
