"""Several devices of one host: a process each, among which requests are dealt out, or that run one split model."""
