"""Does a drafter get at serving time what it was trained on?"""
