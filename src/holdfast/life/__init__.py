"""What every leased row shares, whichever tables it is in: how it is claimed, held, ended, taken back and looked at.

What a surface implements (`Source` for workers, `Desk` for people), and the rules on leases that ran out. SQL, and
what is about one surface only, do not belong here.
"""
