"""Facts -> Verdict: pure, one rule per file, listed in one tuple."""
