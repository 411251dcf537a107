"""The command line. Nouns are modules, loaded when they are asked for; all but a few speak to the
server's REST API.

Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no server answers, 4 timed out.
"""
