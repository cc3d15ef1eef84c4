"""What recording a bundle takes."""
