"""An emulator of gfx942: the machine code that Triton compiles for it, executed here, instruction by instruction."""
