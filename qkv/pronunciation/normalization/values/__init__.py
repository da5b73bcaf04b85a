"""Rules of numbers: amounts, dates, times, measures, fractions, ranges, scientific notation."""
