"""Labels of steps, and the models that are trained on them."""
