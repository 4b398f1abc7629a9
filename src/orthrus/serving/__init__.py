"""Models behind a server, and the planning of how many machines they need.

In: models and requests. Out: answers, or refusals with a reason. `schedule` decides whose turn it is and who
is refused, without a thread or a clock of its own, so that the server and the simulator run the same code.
"""
