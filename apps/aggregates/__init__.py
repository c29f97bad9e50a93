"""Continuous aggregations as data: windows over topics, published and removed while the job runs."""
