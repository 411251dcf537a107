"""The site's configuration as documents: their kinds, and the routes that compare and apply them."""
