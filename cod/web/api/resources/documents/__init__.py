"""The site's configuration as documents: kinds, and the routes that compare and apply them."""
