"""Object detection: pictures with boxes, external proposals, evaluation, prediction."""
