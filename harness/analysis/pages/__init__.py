"""Tables and plots as data, and what shows them: pages, Markdown, terminal, JSON, data frames."""
