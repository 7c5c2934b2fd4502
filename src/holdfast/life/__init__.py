"""What every leased row shares, whichever tables it is in: how it is claimed, held, ended and taken back.

Protocols that a surface implements, and the rules on leases that ran out. No SQL, and nothing about one surface only.
"""
