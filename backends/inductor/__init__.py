"""What the targets that compile by torch's Inductor share."""
