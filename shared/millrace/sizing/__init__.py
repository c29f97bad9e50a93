"""How much a job will take: a small model of batches and pages, and what was measured for it."""
