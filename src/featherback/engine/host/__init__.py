"""The computer around the device: files mapped, paged and streamed, memory limits, signals, sensors."""
