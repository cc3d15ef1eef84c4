"""The machine: registers of many waves side by side, memory, and what each kind of instruction does to them."""
