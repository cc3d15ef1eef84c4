"""What the tests of damage and of bad inputs draw, by a seed."""
