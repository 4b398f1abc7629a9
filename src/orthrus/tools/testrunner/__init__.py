"""`orthrus test-runner`: models on the test data beside them."""
