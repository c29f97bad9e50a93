"""Connectors: Kafka and Delta sources and sinks, the output router, upkeep of tables."""
