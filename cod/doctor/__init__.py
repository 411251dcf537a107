"""`cod doctor`: examines everything that a server depends on, and reports what is wrong and what to
do about it."""
