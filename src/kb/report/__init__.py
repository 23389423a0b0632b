"""Results written for people and for other programs: text, JSON, SARIF, GitHub, GitLab, JUnit."""
