"""A compiled model under the names and arguments of other libraries, for code that is written against them."""
