"""What stands between a step's logits and the user's text: options, sampling, rules of the folder, stopping."""
