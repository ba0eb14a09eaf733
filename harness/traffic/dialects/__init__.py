"""How servers of language models are asked and how they answer: one file for each dialect."""
