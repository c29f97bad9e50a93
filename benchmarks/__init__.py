"""What Millrace measures of itself, behind `millrace bench …`; figures stand in docs/performance.md."""
