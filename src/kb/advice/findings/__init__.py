"""Findings beside the rules' own: rows of tables, releases that names tell; and how much a finding weighs."""
