"""How requests travel: the Open Inference Protocol over HTTP and over gRPC.

In: bytes of connections. Out: what they ask of the server's operations and its executor, and answers in each
protocol's form. Nothing in here decides whether or when a request runs.
"""
