"""Rules of names: abbreviations, capitals, Roman numerals, addresses, codes, links."""
