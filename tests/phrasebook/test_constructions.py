"""Questions, orders, joined clauses and the other constructions, checked by hand."""

# ruff: noqa: E501 (a sentence in three languages reads best on few lines)
from __future__ import annotations

import pytest

from clearhead.phrasebook import english, french, german
from clearhead.phrasebook import numbers_and_times as times
from clearhead.phrasebook.book import SHOWCASE
from clearhead.phrasebook.meaning import (
    Age,
    Birth,
    Clock,
    Described,
    Exclamation,
    Existence,
    Joined,
    Order,
    Place,
    Price,
    Pronoun,
    Question,
    Reported,
    Sentence,
    WhatQuestion,
    Who,
)
from clearhead.phrasebook.words import ADJECTIVE

from .says import HE, SHE, THEY, WE, YOU, I, clause, name, np

PAUL, CAR, COFFEE, GIRLS, OLD_KEYS = (
    name("Paul"),
    np("a red car"),
    np("the coffee"),
    np("the girls"),
    np("the old keys"),
)

QUESTIONS = [
    (Question(clause(YOU, "love", "generic deep learning")),
     "Do you love deep learning?", "Est-ce que vous adorez l'apprentissage profond ?", "Lieben Sie Deep Learning?"),
    (Question(clause(YOU, "see", "the cat")),
     "Do you see the cat?", "Est-ce que vous voyez le chat ?", "Sehen Sie die Katze?"),
    (Question(clause(SHE, "open", "the window", progressive=True)),
     "Is she opening the window?", "Est-ce qu'elle ouvre la fenêtre ?", "Macht sie das Fenster auf?"),
    (Question(clause("Anne", "read", "this poem", tense="past")),
     "Did Anne read this poem?", "Est-ce qu'Anne a lu ce poème ?", "Hat Anne dieses Gedicht gelesen?"),
    (Question(clause("the house", "be", quality="big")),
     "Is the house big?", "Est-ce que la maison est grande ?", "Ist das Haus groß?"),
    (Question(clause("the key", "be"), "where"), "Where is the key?", "Où est la clé ?", "Wo ist der Schlüssel?"),
    (Question(clause("my hats", "be", tense="past"), "where"),
     "Where were my hats?", "Où étaient mes chapeaux ?", "Wo waren meine Hüte?"),
    (Question(clause(YOU, "find", "the bag", tense="past"), "where"),
     "Where did you find the bag?", "Où est-ce que vous avez trouvé le sac ?", "Wo haben Sie die Tasche gefunden?"),
    (Question(clause("the train", "leave"), "when"),
     "When does the train leave?", "Quand est-ce que le train part ?", "Wann fährt der Zug ab?"),
    (Question(clause(HE, "eat", "the soup", negative=True, progressive=True), "why"),
     "Why is he not eating the soup?", "Pourquoi est-ce qu'il ne mange pas la soupe ?",
     "Warum isst er die Suppe nicht?"),
    (Question(clause(Who(), "eat", "the apple", progressive=True)),
     "Who is eating the apple?", "Qui mange la pomme ?", "Wer isst den Apfel?"),
    (Question(clause(Who(), "help", "the women", tense="past")),
     "Who helped the women?", "Qui a aidé les femmes ?", "Wer hat den Frauen geholfen?"),
    (WhatQuestion(clause("the boy", "eat", progressive=True)),
     "What is the boy eating?", "Qu'est-ce que le garçon mange ?", "Was isst der Junge?"),
    (WhatQuestion(clause(THEY, "bring", tense="past")),
     "What did they bring?", "Qu'est-ce qu'ils ont apporté ?", "Was haben sie mitgebracht?"),
    (WhatQuestion(clause(YOU, "buy", tense="past"), np("none apples")),
     "How many apples did you buy?", "Combien de pommes est-ce que vous avez achetées ?",
     "Wie viele Äpfel haben Sie gekauft?"),
    (WhatQuestion(clause(SHE, "have"), np("none oranges")),
     "How many oranges does she have?", "Combien d'oranges est-ce qu'elle a ?", "Wie viele Orangen hat sie?"),
]  # fmt: skip

ORDERS = [
    (Order(clause(YOU, "open", "the door")), "Open the door!", "Ouvrez la porte !", "Machen Sie die Tür auf!"),
    (Order(clause(YOU, "open", "the door", negative=True)),
     "Do not open the door!", "N'ouvrez pas la porte !", "Machen Sie die Tür nicht auf!"),
    (Order(clause(YOU, "drink", "some water"), polite=True),
     "Please drink water.", "Buvez de l'eau, s'il vous plaît.", "Bitte trinken Sie Wasser."),
]  # fmt: skip

JOINED = [
    (Joined(clause(I, "have", CAR), "and", clause(I, "love", Pronoun("it", CAR))),
     "I have a red car and I love it.", "J'ai une voiture rouge et je l'adore.",
     "Ich habe ein rotes Auto und ich liebe es."),
    (Joined(clause("Paul", "buy", CAR, tense="past"), "and",
            clause(Pronoun("he", PAUL), "sell", Pronoun("it", CAR), tense="past")),
     "Paul bought a red car and he sold it.", "Paul a acheté une voiture rouge et il l'a vendue.",
     "Paul hat ein rotes Auto gekauft und er hat es verkauft."),
    (Joined(clause(GIRLS, "look for", OLD_KEYS, tense="past"), "but",
            clause(Pronoun("they", GIRLS), "find", Pronoun("they", OLD_KEYS), tense="past", negative=True)),
     "The girls looked for the old keys, but they did not find them.",
     "Les filles ont cherché les vieilles clés, mais elles ne les ont pas trouvées.",
     "Die Mädchen haben die alten Schlüssel gesucht, aber sie haben sie nicht gefunden."),
    (Joined(clause(SHE, "drink", COFFEE, negative=True, progressive=True), "because",
            clause(Pronoun("it", COFFEE), "be", quality="hot", degree="too")),
     "She is not drinking the coffee because it is too hot.",
     "Elle ne boit pas le café parce qu'il est trop chaud.", "Sie trinkt den Kaffee nicht, weil er zu heiß ist."),
    (Reported(clause(I, "know that"), clause(SHE, "see", "the cat")),
     "I know that she sees the cat.", "Je sais qu'elle voit le chat.", "Ich weiß, dass sie die Katze sieht."),
    (Reported(clause("Paul", "think"), clause("Emma", "close", "the door", progressive=True)),
     "Paul thinks that Emma is closing the door.", "Paul pense qu'Emma ferme la porte.",
     "Paul denkt, dass Emma die Tür zumacht."),
    (Reported(clause(WE, "say"), clause(HE, "close", "the door", tense="past", negative=True)),
     "We say that he did not close the door.", "Nous disons qu'il n'a pas fermé la porte.",
     "Wir sagen, dass er die Tür nicht zugemacht hat."),
    (Reported(clause(THEY, "hope"), clause(YOU, "learn", "generic French", tense="future")),
     "They hope that you will learn French.", "Ils espèrent que vous apprendrez le français.",
     "Sie hoffen, dass Sie Französisch lernen werden."),
    (Described(np("the car"), clause(I, "buy", tense="past"), ADJECTIVE["red"]),
     "The car that I bought is red.", "La voiture que j'ai achetée est rouge.", "Das Auto, das ich gekauft habe, ist rot."),
    (Described(np("the men"), clause("Emma", "help"), ADJECTIVE["sick"]),
     "The men that Emma helps are sick.", "Les hommes qu'Emma aide sont malades.",
     "Die Männer, denen Emma hilft, sind krank."),
    (Described(np("the hat"), clause(SHE, "wear", progressive=True), ADJECTIVE["beautiful"]),
     "The hat that she is wearing is beautiful.", "Le chapeau qu'elle porte est beau.",
     "Der Hut, den sie trägt, ist schön."),
]  # fmt: skip

OTHERS = [
    (Existence(np("a cat"), Place("in", np("the garden"))),
     "There is a cat in the garden.", "Il y a un chat dans le jardin.", "Im Garten ist eine Katze."),
    (Existence(np("a orange"), Place("on", np("the table")), negative=True),
     "There is no orange on the table.", "Il n'y a pas d'orange sur la table.", "Auf dem Tisch ist keine Orange."),
    (Existence(np("a trees"), Place("behind", np("these houses")), negative=True),
     "There are no trees behind these houses.", "Il n'y a pas d'arbres derrière ces maisons.",
     "Hinter diesen Häusern sind keine Bäume."),
    (Existence(np("3 old men"), Place("next to", np("the old castle"))),
     "There are three old men next to the old castle.", "Il y a trois vieux hommes à côté du vieux château.",
     "Neben dem alten Schloss sind drei alte Männer."),
    (Exclamation(np("a beautiful house")), "What a beautiful house!", "Quelle belle maison !", "Was für ein schönes Haus!"),
    (Exclamation(np("a big birds")), "What big birds!", "Quels grands oiseaux !", "Was für große Vögel!"),
    (Clock(times.clock(10, 3)), "It is a quarter to eleven.", "Il est onze heures moins le quart.",
     "Es ist Viertel vor elf."),
    (Clock(times.clock(1, 1)), "It is a quarter past one.", "Il est une heure et quart.", "Es ist Viertel nach eins."),
    (Age(name("Marie"), 31), "Marie is thirty-one years old.", "Marie a trente et un ans.",
     "Marie ist einunddreißig Jahre alt."),
    (Age(I, 74), "I am seventy-four years old.", "J'ai soixante-quatorze ans.", "Ich bin vierundsiebzig Jahre alt."),
    (Price(np("these blue hats"), 45), "These blue hats cost 45 euros.", "Ces chapeaux bleus coûtent 45 euros.",
     "Diese blauen Hüte kosten 45 Euro."),
    (Birth(name("Claire"), times.date(14, 7, 1998)), "Claire was born on 14 July 1998.",
     "Claire est née le 14 juillet 1998.", "Claire wurde am 14. Juli 1998 geboren."),
    (Birth(np("my sisters"), times.date(1, 8, 1970)), "My sisters were born on 1 August 1970.",
     "Mes sœurs sont nées le 1er août 1970.", "Meine Schwestern wurden am 1. August 1970 geboren."),
]  # fmt: skip


@pytest.mark.parametrize("case", QUESTIONS + ORDERS + JOINED + OTHERS, ids=lambda case: case[1])
def test_said_right_in_three_languages(case: tuple[Sentence, str, str, str]) -> None:
    meaning, english_text, french_text, german_text = case
    assert (english.say(meaning), french.say(meaning), german.say(meaning)) == (
        english_text,
        french_text,
        german_text,
    )


def test_the_showcase_is_said_in_every_language() -> None:
    for meaning in SHOWCASE:
        assert len({english.say(meaning), french.say(meaning), german.say(meaning)}) == 3
