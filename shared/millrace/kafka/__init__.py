"""Kafka beside Spark: an embedded broker, admin helpers, options of clients."""
