"""What all tests share."""

pytest_plugins = ["millrace.testing.kafka"]
