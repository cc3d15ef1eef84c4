"""Every private corner of torch that Headrace touches. No other room touches one, which a test enforces."""
