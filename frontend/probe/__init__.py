"""What the eager model does when its inputs change: measured, for the passes to hold their annotations against."""
