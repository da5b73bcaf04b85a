"""Plans of trainings beyond this machine: memory, traffic and the shortest time of a step, by formulas."""
