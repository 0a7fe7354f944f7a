"""How each kind of catalogue source delivers: a package index, a URL, the Hugging Face hub."""
