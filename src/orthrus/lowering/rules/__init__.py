"""One rule per operator: what its node becomes in a compiled part. `rule_sets` imports a module of
them when one of its operators is first asked for.
"""
