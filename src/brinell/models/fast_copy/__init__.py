"""A frozen inference copy of a network: channels-last, weights cast, convolutions fused with their ReLU."""
