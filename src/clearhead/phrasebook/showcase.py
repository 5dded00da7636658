"""A few meanings to show: each holds something that a translator must learn to do."""

from __future__ import annotations

from clearhead.phrasebook import times
from clearhead.phrasebook.adjectives import ADJECTIVE
from clearhead.phrasebook.meaning import (
    Birth,
    Clause,
    Described,
    Joined,
    Name,
    Phrase,
    Pronoun,
    Question,
    Sentence,
    Statement,
)
from clearhead.phrasebook.nouns import NOUN
from clearhead.phrasebook.verbs import VERB

_I = Pronoun("I")
_DEEP_LEARNING = Phrase(NOUN["deep learning"], "generic")
_CAR = Phrase(NOUN["car"])
_CAT = Phrase(NOUN["cat"])
_KEY = Phrase(NOUN["key"], adjectives=(ADJECTIVE["old"],))

SHOWCASE: tuple[Sentence, ...] = (
    Statement(Clause(_I, VERB["love"], target=_DEEP_LEARNING)),
    Question(Clause(Pronoun("you"), VERB["love"], target=_DEEP_LEARNING)),
    # adjectives on either side of the noun
    Statement(
        Clause(
            Pronoun("she"),
            VERB["read"],
            target=Phrase(NOUN["book"], adjectives=(ADJECTIVE["old"], ADJECTIVE["red"])),
            progressive=True,
        )
    ),
    # "it" takes its gender from the car, and from the cat
    Joined(
        Clause(_I, VERB["buy"], target=_CAR, negative=True, progressive=True),
        "because",
        Clause(Pronoun("it", _CAR), VERB["be"], quality=ADJECTIVE["expensive"], degree="too"),
    ),
    Joined(
        Clause(_CAT, VERB["sleep"], progressive=True),
        "because",
        Clause(Pronoun("it", _CAT), VERB["be"], quality=ADJECTIVE["tired"]),
    ),
    # a pronoun moves before the verb, and the participle agrees with it
    Joined(
        Clause(Name("Paul", "m"), VERB["look for"], "past", _KEY),
        "but",
        Clause(Pronoun("he", Name("Paul", "m")), VERB["find"], "past", Pronoun("it", _KEY), negative=True),
    ),
    Described(
        Phrase(NOUN["apple"], plural=True),
        Clause(Name("Emma", "f"), VERB["eat"], "past"),
        ADJECTIVE["good"],
    ),
    Birth(Name("Marie", "f"), times.date(14, 7, 1998)),
)
