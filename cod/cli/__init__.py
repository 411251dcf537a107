"""The command line. Each noun is a module, which is imported when it is used. Nearly all commands
use the server's REST API.

Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no server answers, 4 timed out.
"""
