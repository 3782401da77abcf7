"""The machine the program runs on: files mapped, paged and streamed, memory and limits; nothing of a device."""
