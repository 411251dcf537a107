"""`cod doctor`: looks at everything a server stands on, and says what is in the way and what to do
about it."""
