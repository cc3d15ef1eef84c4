"""The operators of the IR (library namespace `headrace`): what each means, in plain torch."""
