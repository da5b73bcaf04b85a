"""Register the attention kinds with Hugging Face transformers; read and write its files."""
