"""Train parts of a network apart, exchange their increments as signed bundles, verify these and merge them."""
