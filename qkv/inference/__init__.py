"""Use a trained model: answer, generate, fill masks, embed."""
