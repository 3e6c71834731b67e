"""``kgen tune``: tiles that a GPU likes better than those of the rule, written into specs.

``plans`` says what may be launched, ``choose`` what of it beats the rule by the times that were
measured, and ``entries`` puts that into the text of a spec.
"""
