"""The nouns of the phrasebook, in one table.

Columns: English singular | plural | French singular | plural | gender |
German singular | plural | gender (`w`: weak) | pronoun | kinds. A dash is an empty
cell; a noun without a plural is not counted (bread, music). The pronoun is left out
where one cannot be chosen for all three languages (a child is he, she or it).

Kinds say what makes sense: one reads a `text`, wears `clothes`, is `inside` a place.
"""

from __future__ import annotations

from clearhead.phrasebook.words import Noun, rows

_TABLE = """
man          | men          | homme       | hommes       | m | Mann         | Männer        | m  | he  | person adult
woman        | women        | femme       | femmes       | f | Frau         | Frauen        | f  | she | person adult
boy          | boys         | garçon      | garçons      | m | Junge        | Jungen        | mw | he  | person
girl         | girls        | fille       | filles       | f | Mädchen      | Mädchen       | n  | -   | person
child        | children     | enfant      | enfants      | m | Kind         | Kinder        | n  | -   | person
king         | kings        | roi         | rois         | m | König        | Könige        | m  | he  | person adult
queen        | queens       | reine       | reines       | f | Königin      | Königinnen    | f  | she | person adult
mother       | -            | mère        | -            | f | Mutter       | -             | f  | she | family
father       | -            | père        | -            | m | Vater        | -             | m  | he  | family
brother      | brothers     | frère       | frères       | m | Bruder       | Brüder        | m  | he  | family
sister       | sisters      | sœur        | sœurs        | f | Schwester    | Schwestern    | f  | she | family
uncle        | uncles       | oncle       | oncles       | m | Onkel        | Onkel         | m  | he  | family
aunt         | aunts        | tante       | tantes       | f | Tante        | Tanten        | f  | she | family
cat          | cats         | chat        | chats        | m | Katze        | Katzen        | f  | it  | animal pet
dog          | dogs         | chien       | chiens       | m | Hund         | Hunde         | m  | it  | animal pet washed
horse        | horses       | cheval      | chevaux      | m | Pferd        | Pferde        | n  | it  | animal pet washed
bird         | birds        | oiseau      | oiseaux      | m | Vogel        | Vögel         | m  | it  | animal pet
cow          | cows         | vache       | vaches       | f | Kuh          | Kühe          | f  | it  | animal
mouse        | mice         | souris      | souris       | f | Maus         | Mäuse         | f  | it  | animal
elephant     | elephants    | éléphant    | éléphants    | m | Elefant      | Elefanten     | mw | it  | animal
apple        | apples       | pomme       | pommes       | f | Apfel        | Äpfel         | m  | it  | food fodder
orange       | oranges      | orange      | oranges      | f | Orange       | Orangen       | f  | it  | food
pear         | pears        | poire       | poires       | f | Birne        | Birnen        | f  | it  | food fodder
egg          | eggs         | œuf         | œufs         | m | Ei           | Eier          | n  | it  | food
cake         | cakes        | gâteau      | gâteaux      | m | Kuchen       | Kuchen        | m  | it  | food made
bread        | -            | pain        | -            | m | Brot         | -             | n  | it  | dish fodder
cheese       | -            | fromage     | -            | m | Käse         | -             | m  | it  | dish fodder
meat         | -            | viande      | -            | f | Fleisch      | -             | n  | it  | dish fodder
soup         | -            | soupe       | -            | f | Suppe        | -             | f  | it  | dish made
chocolate    | -            | chocolat    | -            | m | Schokolade   | -             | f  | it  | dish
water        | -            | eau         | -            | f | Wasser       | -             | n  | it  | drink watering
milk         | -            | lait        | -            | m | Milch        | -             | f  | it  | drink watering
coffee       | -            | café        | -            | m | Kaffee       | -             | m  | it  | drink made
tea          | -            | thé         | -            | m | Tee          | -             | m  | it  | drink made
book         | books        | livre       | livres       | m | Buch         | Bücher        | n  | it  | text coloured written ware
letter       | letters      | lettre      | lettres      | f | Brief        | Briefe        | m  | it  | text written
newspaper    | newspapers   | journal     | journaux     | m | Zeitung      | Zeitungen     | f  | it  | text ware
story        | stories      | histoire    | histoires    | f | Geschichte   | Geschichten   | f  | it  | text written
poem         | poems        | poème       | poèmes       | m | Gedicht      | Gedichte      | n  | it  | text written
key          | keys         | clé         | clés         | f | Schlüssel    | Schlüssel     | m  | it  | thing
bag          | bags         | sac         | sacs         | m | Tasche       | Taschen       | f  | it  | thing coloured ware
umbrella     | umbrellas    | parapluie   | parapluies   | m | Regenschirm  | Regenschirme  | m  | it  | thing coloured ware
lamp         | lamps        | lampe       | lampes       | f | Lampe        | Lampen        | f  | it  | thing coloured ware
knife        | knives       | couteau     | couteaux     | m | Messer       | Messer        | n  | it  | thing ware
flower       | flowers      | fleur       | fleurs       | f | Blume        | Blumen        | f  | it  | plant coloured gift
hat          | hats         | chapeau     | chapeaux     | m | Hut          | Hüte          | m  | it  | clothes coloured ware
coat         | coats        | manteau     | manteaux     | m | Mantel       | Mäntel        | m  | it  | clothes coloured ware washed
jacket       | jackets      | veste       | vestes       | f | Jacke        | Jacken        | f  | it  | clothes coloured ware washed
shirt        | shirts       | chemise     | chemises     | f | Hemd         | Hemden        | n  | it  | clothes coloured ware washed
car          | cars         | voiture     | voitures     | f | Auto         | Autos         | n  | it  | vehicle coloured washed
bicycle      | bicycles     | vélo        | vélos        | m | Fahrrad      | Fahrräder     | n  | it  | vehicle coloured washed
boat         | boats        | bateau      | bateaux      | m | Boot         | Boote         | n  | it  | vehicle coloured
train        | trains       | train       | trains       | m | Zug          | Züge          | m  | it  | transport
bus          | buses        | bus         | bus          | m | Bus          | Busse         | m  | it  | transport
house        | houses       | maison      | maisons      | f | Haus         | Häuser        | n  | it  | building coloured inside home owned
church       | churches     | église      | églises      | f | Kirche       | Kirchen       | f  | it  | building inside goal
hotel        | hotels       | hôtel       | hôtels       | m | Hotel        | Hotels        | n  | it  | building inside goal
school       | schools      | école       | écoles       | f | Schule       | Schulen       | f  | it  | building inside goal
museum       | museums      | musée       | musées       | m | Museum       | Museen        | n  | it  | building inside goal
castle       | castles      | château     | châteaux     | m | Schloss      | Schlösser     | n  | it  | building inside goal
hospital     | hospitals    | hôpital     | hôpitaux     | m | Krankenhaus  | Krankenhäuser | n  | it  | building inside goal
garden       | gardens      | jardin      | jardins      | m | Garten       | Gärten        | m  | it  | place inside home
kitchen      | kitchens     | cuisine     | cuisines     | f | Küche        | Küchen        | f  | it  | place inside home
park         | parks        | parc        | parcs        | m | Park         | Parks         | m  | it  | place inside goal
village      | villages     | village     | villages     | m | Dorf         | Dörfer        | n  | it  | place inside
forest       | forests      | forêt       | forêts       | f | Wald         | Wälder        | m  | it  | place inside
market       | markets      | marché      | marchés      | m | Markt        | Märkte        | m  | it  | place goal
beach        | beaches      | plage       | plages       | f | Strand       | Strände       | m  | it  | place goal
station      | stations     | gare        | gares        | f | Bahnhof      | Bahnhöfe      | m  | it  | place goal
table        | tables       | table       | tables       | f | Tisch        | Tische        | m  | it  | furniture coloured surface
chair        | chairs       | chaise      | chaises      | f | Stuhl        | Stühle        | m  | it  | furniture coloured surface
bed          | beds         | lit         | lits         | m | Bett         | Betten        | n  | it  | furniture surface
door         | doors        | porte       | portes       | f | Tür          | Türen         | f  | it  | opening coloured
window       | windows      | fenêtre     | fenêtres     | f | Fenster      | Fenster       | n  | it  | opening
box          | boxes        | boîte       | boîtes       | f | Kiste        | Kisten        | f  | it  | opening coloured
tree         | trees        | arbre       | arbres       | m | Baum         | Bäume         | m  | it  | plant lasting
deep learning | - | apprentissage profond | - | m | Deep Learning | - | n | it | activity
music        | -            | musique     | -            | f | Musik        | -             | f  | it  | activity
football     | -            | football    | -            | m | Fußball      | -             | m  | it  | activity
art          | -            | art         | -            | m | Kunst        | -             | f  | it  | activity
physics      | -            | physique    | -            | f | Physik       | -             | f  | it  | activity learnt
French       | -            | français    | -            | m | Französisch  | -             | n  | it  | language learnt
German       | -            | allemand    | -            | m | Deutsch      | -             | n  | it  | language learnt
English      | -            | anglais     | -            | m | Englisch     | -             | n  | it  | language learnt
"""  # noqa: E501


def _noun(cells: list[str]) -> Noun:
    key, plural, french, french_plural, french_gender, german, german_plural, gender, pronoun, kinds = cells
    return Noun(
        key=key,
        english_plural=plural,
        french=french,
        french_plural=french_plural,
        french_gender=french_gender,
        german=german,
        german_plural=german_plural,
        german_gender=gender[0],
        weak=gender.endswith("w"),
        pronoun=pronoun,
        kinds=tuple(kinds.split()),
    )


NOUNS: tuple[Noun, ...] = tuple(_noun(cells) for cells in rows(_TABLE))
NOUN: dict[str, Noun] = {noun.key: noun for noun in NOUNS}

# English name | gender; spelt alike in the three languages, and easy in the genitive of all three
NAMES: dict[str, str] = {
    "Paul": "m",
    "Simon": "m",
    "Arthur": "m",
    "Oscar": "m",
    "Marie": "f",
    "Anne": "f",
    "Claire": "f",
    "Emma": "f",
}
