"""The verbs of the phrasebook: forms in each language, and what goes with what.

One table per language, each keyed by the English verb, and one that says how the
verb is used. A dash is an empty cell. A French row that holds only the infinitive
is a regular verb in -er.
"""

from __future__ import annotations

from clearhead.phrasebook.words import Verb, rows

# key | base | third person | past | -ing
_ENGLISH = """
be         | be         | is          | was         | being
have       | have       | has         | had         | having
see        | see        | sees        | saw         | seeing
find       | find       | finds       | found       | finding
look for   | look for   | looks for   | looked for  | looking for
buy        | buy        | buys        | bought      | buying
sell       | sell       | sells       | sold        | selling
eat        | eat        | eats        | ate         | eating
drink      | drink      | drinks      | drank       | drinking
eat (animal) | eat      | eats        | ate         | eating
drink (animal) | drink  | drinks      | drank       | drinking
read       | read       | reads       | read        | reading
write      | write      | writes      | wrote       | writing
open       | open       | opens       | opened      | opening
close      | close      | closes      | closed      | closing
take       | take       | takes       | took        | taking
bring      | bring      | brings      | brought     | bringing
give       | give       | gives       | gave        | giving
show       | show       | shows       | showed      | showing
love       | love       | loves       | loved       | loving
like       | like       | likes       | liked       | liking
know       | know       | knows       | knew        | knowing
wait for   | wait for   | waits for   | waited for  | waiting for
help       | help       | helps       | helped      | helping
wash       | wash       | washes      | washed      | washing
wear       | wear       | wears       | wore        | wearing
make       | make       | makes       | made        | making
learn      | learn      | learns      | learned     | learning
understand | understand | understands | understood  | understanding
talk about | talk about | talks about | talked about | talking about
sleep      | sleep      | sleeps      | slept       | sleeping
work       | work       | works       | worked      | working
sing       | sing       | sings       | sang        | singing
laugh      | laugh      | laughs      | laughed     | laughing
go         | go         | goes        | went        | going
stay       | stay       | stays       | stayed      | staying
arrive     | arrive     | arrives     | arrived     | arriving
leave      | leave      | leaves      | left        | leaving
want       | want       | wants       | wanted      | wanting
can        | can        | can         | could       | -
must       | must       | must        | -           | -
cost       | cost       | costs       | cost        | costing
think      | think      | thinks      | thought     | thinking
say        | say        | says        | said        | saying
know that  | know       | knows       | knew        | knowing
hope       | hope       | hopes       | hoped       | hoping
"""

# key | infinitive | je il nous vous ils | participle | stem of the future | auxiliary | preposition
_FRENCH = """
be         | être       | suis est sommes êtes sont | été | ser | avoir | -
have       | avoir      | ai a avons avez ont | eu | aur | avoir | -
see        | voir       | vois voit voyons voyez voient | vu | verr | avoir | -
find       | trouver
look for   | chercher
buy        | acheter    | achète achète achetons achetez achètent | acheté | achèter | avoir | -
sell       | vendre     | vends vend vendons vendez vendent | vendu | vendr | avoir | -
eat        | manger     | mange mange mangeons mangez mangent | mangé | manger | avoir | -
drink      | boire      | bois boit buvons buvez boivent | bu | boir | avoir | -
eat (animal) | manger   | mange mange mangeons mangez mangent | mangé | manger | avoir | -
drink (animal) | boire  | bois boit buvons buvez boivent | bu | boir | avoir | -
read       | lire       | lis lit lisons lisez lisent | lu | lir | avoir | -
write      | écrire     | écris écrit écrivons écrivez écrivent | écrit | écrir | avoir | -
open       | ouvrir     | ouvre ouvre ouvrons ouvrez ouvrent | ouvert | ouvrir | avoir | -
close      | fermer
take       | prendre    | prends prend prenons prenez prennent | pris | prendr | avoir | -
bring      | apporter
give       | donner
show       | montrer
love       | adorer
like       | aimer
know       | connaître  | connais connaît connaissons connaissez connaissent | connu | connaîtr | avoir | -
wait for   | attendre   | attends attend attendons attendez attendent | attendu | attendr | avoir | -
help       | aider
wash       | laver
wear       | porter
make       | faire      | fais fait faisons faites font | fait | fer | avoir | -
learn      | apprendre  | apprends apprend apprenons apprenez apprennent | appris | apprendr | avoir | -
understand | comprendre | comprends comprend comprenons comprenez comprennent | compris | comprendr | avoir |-
talk about | parler     | parle parle parlons parlez parlent | parlé | parler | avoir | de
sleep      | dormir     | dors dort dormons dormez dorment | dormi | dormir | avoir | -
work       | travailler
sing       | chanter
laugh      | rire       | ris rit rions riez rient | ri | rir | avoir | -
go         | aller      | vais va allons allez vont | allé | ir | être | -
stay       | rester     | reste reste restons restez restent | resté | rester | être | -
arrive     | arriver    | arrive arrive arrivons arrivez arrivent | arrivé | arriver | être | -
leave      | partir     | pars part partons partez partent | parti | partir | être | -
want       | vouloir    | veux veut voulons voulez veulent | voulu | voudr | avoir | -
can        | pouvoir    | peux peut pouvons pouvez peuvent | pu | pourr | avoir | -
must       | devoir     | dois doit devons devez doivent | dû | devr | avoir | -
cost       | coûter
think      | penser
say        | dire       | dis dit disons dites disent | dit | dir | avoir | -
know that  | savoir     | sais sait savons savez savent | su | saur | avoir | -
hope       | espérer    | espère espère espérons espérez espèrent | espéré | espérer | avoir | -
"""

# key | infinitive (a bar of its own, written +, parts what is separable) | ich er wir | participle |
# auxiliary | object: a case, or a preposition that takes the accusative
_GERMAN = """
be         | sein       | bin ist sind             | gewesen     | sein  | accusative
have       | haben      | habe hat haben           | gehabt      | haben | accusative
see        | sehen      | sehe sieht sehen         | gesehen     | haben | accusative
find       | finden     | finde findet finden      | gefunden    | haben | accusative
look for   | suchen     | suche sucht suchen       | gesucht     | haben | accusative
buy        | kaufen     | kaufe kauft kaufen       | gekauft     | haben | accusative
sell       | verkaufen  | verkaufe verkauft verkaufen | verkauft | haben | accusative
eat        | essen      | esse isst essen          | gegessen    | haben | accusative
drink      | trinken    | trinke trinkt trinken    | getrunken   | haben | accusative
eat (animal) | fressen  | fresse frisst fressen    | gefressen   | haben | accusative
drink (animal) | trinken | trinke trinkt trinken   | getrunken   | haben | accusative
read       | lesen      | lese liest lesen         | gelesen     | haben | accusative
write      | schreiben  | schreibe schreibt schreiben | geschrieben | haben | accusative
open       | auf+machen | mache macht machen       | aufgemacht  | haben | accusative
close      | zu+machen  | mache macht machen       | zugemacht   | haben | accusative
take       | nehmen     | nehme nimmt nehmen       | genommen    | haben | accusative
bring      | mit+bringen | bringe bringt bringen   | mitgebracht | haben | accusative
give       | geben      | gebe gibt geben          | gegeben     | haben | accusative
show       | zeigen     | zeige zeigt zeigen       | gezeigt     | haben | accusative
love       | lieben     | liebe liebt lieben       | geliebt     | haben | accusative
like       | mögen      | mag mag mögen            | gemocht     | haben | accusative
know       | kennen     | kenne kennt kennen       | gekannt     | haben | accusative
wait for   | warten     | warte wartet warten      | gewartet    | haben | auf
help       | helfen     | helfe hilft helfen       | geholfen    | haben | dative
wash       | waschen    | wasche wäscht waschen    | gewaschen   | haben | accusative
wear       | tragen     | trage trägt tragen       | getragen    | haben | accusative
make       | machen     | mache macht machen       | gemacht     | haben | accusative
learn      | lernen     | lerne lernt lernen       | gelernt     | haben | accusative
understand | verstehen  | verstehe versteht verstehen | verstanden | haben | accusative
talk about | sprechen   | spreche spricht sprechen | gesprochen  | haben | über
sleep      | schlafen   | schlafe schläft schlafen | geschlafen  | haben | accusative
work       | arbeiten   | arbeite arbeitet arbeiten | gearbeitet | haben | accusative
sing       | singen     | singe singt singen       | gesungen    | haben | accusative
laugh      | lachen     | lache lacht lachen       | gelacht     | haben | accusative
go         | gehen      | gehe geht gehen          | gegangen    | sein  | accusative
stay       | bleiben    | bleibe bleibt bleiben    | geblieben   | sein  | accusative
arrive     | an+kommen  | komme kommt kommen       | angekommen  | sein  | accusative
leave      | ab+fahren  | fahre fährt fahren       | abgefahren  | sein  | accusative
want       | wollen     | will will wollen         | gewollt     | haben | accusative
can        | können     | kann kann können         | gekonnt     | haben | accusative
must       | müssen     | muss muss müssen         | gemusst     | haben | accusative
cost       | kosten     | koste kostet kosten      | gekostet    | haben | accusative
think      | denken     | denke denkt denken       | gedacht     | haben | accusative
say        | sagen      | sage sagt sagen          | gesagt      | haben | accusative
know that  | wissen     | weiß weiß wissen         | gewusst     | haben | accusative
hope       | hoffen     | hoffe hofft hoffen       | gehofft     | haben | accusative
"""

# key | tenses | flags | kinds of subject | kinds of object. Verbs that are left out serve one
# construction only and are placed by it. What animals do is told apart where German does so (fressen).
# Feelings and states keep to the present, because the past of a state is told differently from the
# past of an event.
_USE = """
have       | all     | stative       | people        | thing clothes vehicle pet home family text
see        | all     | stative       | people animal | person family animal vehicle building plant
find       | all     | stative       | people        | thing pet text clothes
look for   | all     | -             | people        | thing person family pet text
buy        | all     | -             | people        | ware food dish vehicle owned gift
sell       | all     | -             | people        | ware vehicle owned food
eat        | all     | -             | people        | food dish
drink      | all     | -             | people        | drink
eat (animal) | all   | -             | animal        | fodder
drink (animal) | all | -             | animal        | watering
read       | all     | -             | people        | text
write      | all     | -             | people        | written
open       | all     | -             | people        | opening
close      | all     | -             | people        | opening
take       | all     | -             | people        | thing transport food
bring      | all     | gives         | people        | thing food text gift
give       | all     | gives         | people        | thing food text gift clothes
show       | all     | gives         | people        | text clothes vehicle owned
love       | present | stative generic | people      | family activity drink dish pet text place
like       | present | stative generic | people      | activity drink dish pet text building
know       | present | stative       | people        | person family building place
wait for   | all     | -             | people        | person family transport
help       | all     | -             | people        | person family
wash       | all     | -             | people        | washed
wear       | present future near | - | people        | clothes
make       | all     | -             | people        | made
learn      | all     | -             | people        | learnt
understand | all     | stative generic | people      | language text person
talk about | all     | -             | people        | person family animal text activity
want       | present | stative       | people        | thing food dish drink clothes
sleep      | all     | -             | people animal | -
work       | all     | -             | people        | -
sing       | all     | -             | people        | -
laugh      | all     | -             | people        | -
go         | all     | -             | people        | -
stay       | all     | -             | people animal | -
arrive     | all     | -             | people transport | -
leave      | all     | -             | transport     | -
"""
TENSES = ("present", "past", "future", "near")
_KINDS_OF_PEOPLE = ("person", "family")
_FRENCH_IMPERFECT = {
    "be": ("étais", "était", "étions", "étiez", "étaient"),
    "have": ("avais", "avait", "avions", "aviez", "avaient"),
}
_GERMAN_PAST = {"be": ("war", "war", "waren"), "have": ("hatte", "hatte", "hatten")}


def _five(forms: str) -> tuple[str, str, str, str, str]:
    je, il, nous, vous, ils = forms.split()
    return je, il, nous, vous, ils


def regular_er(infinitive: str) -> list[str]:
    """The French cells of a regular verb in -er.

    >>> regular_er("donner")
    ['donner', 'donne donne donnons donnez donnent', 'donné', 'donner', 'avoir', '']
    """
    stem = infinitive.removesuffix("er")
    present = " ".join(stem + ending for ending in ("e", "e", "ons", "ez", "ent"))
    return [infinitive, present, stem + "é", infinitive, "avoir", ""]


def _people(kinds: str) -> tuple[str, ...]:
    """The kinds of a cell, with `people` spelt out."""
    found: list[str] = []
    for kind in kinds.split():
        found.extend(_KINDS_OF_PEOPLE if kind == "people" else (kind,))
    return tuple(found)


def _verbs() -> dict[str, Verb]:
    english = {cells[0]: cells[1:] for cells in rows(_ENGLISH)}
    german = {cells[0]: cells[1:] for cells in rows(_GERMAN)}
    use = {cells[0]: cells[1:] for cells in rows(_USE)}
    found = {}
    for key, *french in rows(_FRENCH):
        base, third, past, ing = english[key]
        infinitive, present, participle, future, auxiliary, preposition = (
            french if len(french) > 1 else regular_er(french[0])
        )
        german_infinitive, german_present, german_participle, german_auxiliary, governs = german[key]
        separable, _, stem = german_infinitive.rpartition("+")
        ich, er, wir = german_present.split()
        tenses, flags, subjects, objects = use.get(key, ["present", "stative", "people", ""])
        found[key] = Verb(
            key=key,
            base=base,
            third=third,
            past=past,
            ing=ing,
            french=infinitive,
            french_present=_five(present),
            french_imperfect=_FRENCH_IMPERFECT.get(key, ()),
            participle=participle,
            future=future,
            with_etre=auxiliary == "être",
            french_preposition=preposition,
            german=stem,
            german_present=(ich, er, wir),
            german_past=_GERMAN_PAST.get(key, ()),
            german_participle=german_participle,
            separable=separable,
            with_sein=german_auxiliary == "sein",
            german_preposition="" if governs in ("accusative", "dative") else governs,
            german_case="dative" if governs == "dative" else "accusative",
            stative="stative" in flags,
            tenses=TENSES if tenses == "all" else tuple(tenses.split()),
            generic="generic" in flags,
            gives="gives" in flags,
            subjects=_people(subjects),
            objects=tuple(objects.split()),
        )
    return found


VERB: dict[str, Verb] = _verbs()
VERBS: tuple[Verb, ...] = tuple(VERB.values())
