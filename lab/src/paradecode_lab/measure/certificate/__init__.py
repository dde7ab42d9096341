"""The losslessness certificate: does this decoder keep its promise, with this model, here?"""
