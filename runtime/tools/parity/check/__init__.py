"""What checking a bundle takes."""
