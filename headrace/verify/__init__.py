"""What holds of every program: a list of rules, each with the stages at which it does, checked after every pass."""
